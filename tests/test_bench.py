"""`interop bench`: that it runs and prints what it says, with few repetitions; its figures are not tested."""

from __future__ import annotations

import contextlib
import csv
import types

import numpy as np
import pytest
from helpers import libraries, machine

import interop
from interop import _core
from interop._commands import bench
from interop._commands.bench import (
    doors,
    elementwise,
    examples,
    first_calls,
    functions,
    gradients,
    jax_programs,
    launches,
    matmul,
    measure,
    memory,
    operators,
    overhead,
    plot,
    sums,
    table,
    threads,
)
from interop._libraries.jax import jax_has_cuda


def test_without_a_gpu_it_says_so(capsys):
    if machine.gpu_count():
        return
    assert bench.run("overhead", None) == 1
    assert capsys.readouterr().out.startswith("interop bench needs a GPU: ")


def test_bars_are_of_some_benchmarks(capsys):
    assert bench.run("memory", None, plot_path="bars.svg") == 1
    assert capsys.readouterr().out == "interop bench: --plot is of elementwise, matmul, overhead\n"


def test_bars_have_every_case_and_library(tmp_path):
    machine.need("matplotlib")
    rows = [
        {"case": case, "backend": backend, "gb_per_s": 2000.0, "ratio_to_copy": 0.7, "card": "a card"}
        for case, backend in [("a + b", "interop"), ("a + b", "torch"), ("a + b.T", "interop")]
    ]
    small = {"case": "small", "backend": "torch", "microseconds": 1.5, "ratio_to_torch": 1.0, "card": "a card"}
    plot.elementwise([*rows, small], str(tmp_path / "bars.svg"))
    text = (tmp_path / "bars.svg").read_text()
    assert all(word in text for word in ("a + b<", "a + b.T<", "interop<", "torch<", "a card"))
    assert "small<" not in text


def test_bars_of_host_time_are_of_interops_calls(tmp_path):
    machine.need("matplotlib")
    rows = [
        {"row": "torch.add", "microseconds": 2.0, "ratio": "", "beside_launch": "", "card": "a card"},
        {"row": "torch.mul", "microseconds": 2.0, "ratio": 1.0, "beside_launch": "", "card": "a card"},
        {"row": "interop.add on torch", "microseconds": 1.0, "ratio": 0.5, "beside_launch": "", "card": "a card"},
    ]
    plot.overhead(rows, str(tmp_path / "bars.svg"))
    text = (tmp_path / "bars.svg").read_text()
    assert all(word in text for word in (">add on torch<", "interop<", "a card"))
    assert ">torch.add<" not in text
    assert ">torch.mul<" not in text


def test_rows_of_two_kinds_share_a_file(tmp_path):
    rows = [
        {"case": "large", "gb_per_s": 2.0, "card": "a card"},
        {"case": "small", "microseconds": 1, "card": "a card"},
    ]
    bench._write(rows, str(tmp_path / "rows.csv"))
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines == ["case,gb_per_s,card,microseconds", "large,2.0,a card,", "small,,a card,1"]


def test_bars_of_products_are_means_of_the_layouts(tmp_path, monkeypatch):
    machine.need("matplotlib")
    drawn = {}
    draw = plot._draw
    monkeypatch.setattr(
        plot, "_draw", lambda cases, ratios, *rest, **how: drawn.update(ratios) or draw(cases, ratios, *rest, **how)
    )
    rates = [("float32 8x8@8x8 NN", "torch", 10), ("float32 8x8@8x8 NN", "interop None", 20)]
    rates += [("float32 8x8@8x8 NT", "torch", 10), ("float32 8x8@8x8 NT", "interop None", 80)]
    rates += [
        ("int32 8x8@8x8 NN", "cupy", 5),
        ("int32 8x8@8x8 NN", "interop tiled", 30),
        ("int8 8x8@8x8 NN", "interop None", 1),
    ]
    rows = [
        {"group": "square", "product": product, "backend": backend, "tflops": rate, "card": "a card"}
        for product, backend, rate in rates
    ]
    plot.matmul([*rows, {**rows[0], "group": "odd"}], str(tmp_path / "bars.svg"))
    assert drawn == {"interop None": {"float32 8": pytest.approx(4)}, "interop tiled": {"int32 8 (to CuPy)": 6}}
    text = (tmp_path / "bars.svg").read_text()
    assert all(word in text for word in ("float32 8<", "int32 8 (to CuPy)<", "interop None<", "a card"))


def test_the_page_of_products_has_every_row_and_the_means(tmp_path):
    rates = [("float32 8x8@8x8 NN", {"torch": 10, "interop None": 20, "interop cublas": 10, "interop tiled": 5})]
    rates += [("float32 4x8x8@8x8 NT", {"torch": 10, "cupy": 5, "interop None": 5, "interop cublas": 10})]
    rates += [("int32 8x8@8x8 NN", {"cupy": 5, "interop None": 30, "interop tiled": 30})]
    rows = [{"product": product, "backend": name, "tflops": rate} for product, of in rates for name, rate in of.items()]
    table.matmul(rows, "a card; torch 2\n", str(tmp_path / "page.md"))
    page = (tmp_path / "page.md").read_text()
    assert "on one a card; torch 2." in page
    for line in (
        "| float32 | 2 | torch | 1.00 | 0.50 | 0.50 | 0.50 | 0.50 | 0.50 |",
        "| float32 | 1 | CuPy | 1.00 | 1.00 | - | - | 0.50 | 0.50 |",
        "| int32 | 1 | CuPy | 6.00 | 6.00 | 6.00 | 6.00 | - | - |",
        "| 8x8 @ 8x8 | NN | 10.0 | - | 20.0 | 10.0 | 5.0 | 2.00 |",
        "| 4x8x8 @ 8x8 | NT | 10.0 | 5.0 | 5.0 | 10.0 | - | 0.50 |",
        "| 8x8 @ 8x8 | NN | - | 5.0 | 30.0 | - | 30.0 | 6.00 |",
    ):
        assert line in page.splitlines(), line


def test_the_page_is_of_products(capsys):
    assert bench.run("overhead", None, table_path="page.md") == 1
    assert capsys.readouterr().out == "interop bench: --table is of matmul\n"


def test_stages_are_of_device_arrays():
    x = np.ones((2, 2), "float32")
    with pytest.raises(TypeError, match="DLPack C exchange API, borrowed views included"):
        _core.Timing.stages(x, x, 1)


def test_stages_are_not_of_host_tensors(torch):
    x = torch.ones(2, 2)
    with pytest.raises(ValueError, match="time_stages is for device arrays"):
        _core.Timing.stages(x, x, 1)


def test_other_libraries_that_are_here_take_part(torch, capsys):
    x = torch.rand(16, 16)
    contest = overhead._Contest()
    overhead._add_others(contest, x)
    skipped = capsys.readouterr().out
    for name in (overhead._NVMATH, overhead._TVM_FFI):
        assert (name in contest.calls) != (f"{name}: skipped: " in skipped)
    if overhead._TVM_FFI in contest.calls:
        assert contest.calls[overhead._TVM_FFI]() is None


def test_a_wrong_product_is_not_timed(torch, monkeypatch, capsys):
    monkeypatch.setattr(overhead, "_nvmath_matmul", lambda: lambda a, b: a @ b + 1)
    contest = overhead._Contest()
    overhead._add_others(contest, torch.rand(16, 16))
    assert f"{overhead._NVMATH}: skipped: AssertionError" in capsys.readouterr().out
    assert overhead._NVMATH not in contest.calls


# ---- functions ----


def test_functions_have_cases_of_every_dtype_and_layout(torch):
    made = functions._cases(torch, "add, ", "cpu", 1 << 21)
    cases = [case for name, case, operands in made if functions._checked(torch, name, case, operands)]
    dtypes, layouts = (set(part) for part in zip(*(case.split(", ") for case in cases), strict=True))
    assert dtypes == set(functions._DTYPES)
    assert layouts == {name for name, _ in functions._layouts()}
    assert len(cases) == len(dtypes) * len(layouts)


@pytest.mark.parametrize("name", interop._operations.table.FUNCTIONS)
def test_functions_agree_with_torch_s(torch, name):
    for dtype in ("bool", "int8", "float32", "complex64"):
        for layout in ("contiguous", "transposed"):
            for function, case, operands in functions._cases(torch, f"{name}, {dtype}, {layout}", "cpu", 1 << 20):
                calls = functions._checked(torch, function, case, operands)
                assert list(calls) == ([] if (name, dtype) == ("abs", "bool") else ["interop", "torch"])  # torch's lack


def test_a_wrong_function_is_not_timed(torch, monkeypatch):
    monkeypatch.setattr(interop, "add", lambda a, b, out: out)
    with pytest.raises(AssertionError, match="interop bench: add, float32, contiguous is wrong; nothing was timed"):
        functions._checked(torch, "add", "float32, contiguous", [torch.ones(3), torch.ones(3)])


def test_functions_behind_torch_s_come_first(capsys):
    rows = [
        {"case": case, "microseconds": 1.0, "torch_microseconds": ratio, "ratio_to_torch": ratio}
        for case, ratio in (("a", 1.2), ("b", 0.97), ("c", 0.5))
    ]
    functions._print(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 of 3 rows below 0.98 of torch's rate"
    assert [line[:1] for line in lines[3:]] == ["c", "b", "", "a"]


def test_rows_of_numpy_arrays(monkeypatch, capsys):
    monkeypatch.setattr(measure, "_CALLS", 3)
    contest = overhead._contest_on_the_host()
    rows = list(overhead._contest_rows(contest))
    assert [row["row"] for row in rows if row["ratio"]] == list(contest.peers)
    assert {"interop.add on NumPy", "interop.elementwise('x * y + a') on NumPy"} <= set(contest.peers)
    assert all(row["microseconds"] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n") == len(rows) + 1


_UNLIKE = [f"{n}-D" for n in range(1, 7)] + ["permuted", "broadcast", "float32 + bfloat16", "a 0-d host tensor"]


def test_rows_of_unlike_sums_are_right(torch):
    pairs = sums.calls(torch, "cpu")
    assert [name for _, _, name, _ in pairs] == [
        *(f"interop.add on torch, {what}" for what in _UNLIKE),
        "interop.less on torch",
    ]
    for _, peer, _, own in pairs:
        expected = peer()
        assert expected.numel() == 256
        overhead._check(own(), expected)


def test_a_wrong_comparison_is_not_timed(torch):
    x = torch.ones(3)
    with pytest.raises(AssertionError, match="a result is wrong"):
        overhead._check(x < 2, x < 1)


def test_rows_of_threads(torch, monkeypatch, capsys):
    for name, value in {"_SECONDS": 0.01, "_ROUNDS": 1, "_CALLS_BEFORE_A_WAIT": 20}.items():
        monkeypatch.setattr(threads, name, value)
    rows = list(threads.run(torch, "cpu"))
    names = [f"{library}.{what}" for what in ("add", "add(out=)", "matmul") for library in ("torch", "interop")]
    assert [row["row"].replace(" on torch", "") for row in rows] == [f"{name}, 8 threads" for name in names]
    assert all(row["microseconds"] > 0 and row["ratio"] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n") == len(rows) + 1


def test_rows_of_first_calls(torch, monkeypatch, capsys):
    for name, value in {"_COUNT": 3, "_LEAST": 2, "_MOST": 9}.items():
        monkeypatch.setattr(first_calls, name, value)
    seen = []
    monkeypatch.setattr(interop, "matmul", lambda a, b: seen.append((*a.shape, *b.shape)))
    rows = list(first_calls.run(torch, "cpu"))
    assert [row["row"] for row in rows] == [
        f"{library}, {dtype}: first call of a shape"
        for dtype in ("float32", "float16")
        for library in ("torch.matmul", "interop.matmul on torch")
    ]
    assert all(row["microseconds"] > 0 and row["ratio"] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n") == len(rows) + 1
    assert len(seen) == 2 * 4
    assert len(set(seen[:4])) == 4


def test_launches_that_cannot_be_made_say_so(torch, monkeypatch, capsys):
    def add(torch, x, out):
        return lambda: torch.add(x, x, out=out)

    def subtract(torch, x, out):
        return lambda: torch.sub(x, x, out=out)

    def absent(torch, x, out):
        raise ImportError("no such library\nbut this")

    monkeypatch.setattr(launches, "WAYS", {"right": add, "wrong": subtract, "absent": absent})
    x = torch.rand(launches.COUNT)
    assert list(launches.launches(torch, x, torch.empty_like(x))) == ["right"]
    assert capsys.readouterr().out == (
        "wrong: skipped: AssertionError: the result is wrong\nabsent: skipped: ImportError: no such library\n"
    )


def _numpy_as_cupy(torch, monkeypatch):
    """What the benchmark calls of CuPy, by NumPy."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=0))
    names = ("from_dlpack", "result_type", "add", "less", "multiply")
    return types.SimpleNamespace(
        **{name: getattr(np, name) for name in names},
        cuda=types.SimpleNamespace(Stream=object, ExternalStream=lambda pointer: contextlib.nullcontext()),
        ElementwiseKernel=lambda *text: lambda x, y, z: np.add(x * np.float32(2.5), y, out=z),
    )


def test_small_calls_of_every_library_are_right(torch, monkeypatch):
    cupy = _numpy_as_cupy(torch, monkeypatch)
    taking_part = {
        case: list(elementwise._checked_calls(torch, cupy, case, functions, operands))
        for case, functions, operands in elementwise._small_cases(torch, cupy, True, "cpu")
    }
    assert taking_part.pop("float32 + int32, 128^2") == ["interop", "torch"]  # NumPy and CuPy give float64
    assert len(taking_part) == 15
    assert all(libraries == ["interop", "torch", "cupy"] for libraries in taking_part.values())


def test_small_calls_do_without_cupy_and_a_compiler(torch):
    cases = list(elementwise._small_cases(torch, None, False, "cpu"))
    assert len(cases) == 15
    case, functions, operands = cases[0]
    assert list(elementwise._checked_calls(torch, None, case, functions, operands)) == ["interop", "torch"]


def test_wrong_small_calls_are_not_timed(torch):
    functions = {"interop": lambda x, y, out: out, "torch": torch.add}
    with pytest.raises(AssertionError, match="a sum by interop is wrong; nothing was timed"):
        elementwise._checked_calls(torch, None, "a sum", functions, [torch.ones(3), torch.ones(3)])


def test_rows_of_small_calls_have_the_ratio_to_torch(capsys):
    times = {"interop": 3e-6, "torch": 2e-6}
    rows = list(elementwise._time_rows("a sum", times, ["interop", "torch", "cupy"]))
    assert [(row["backend"], row["microseconds"], row["ratio_to_torch"]) for row in rows] == [
        ("interop", pytest.approx(3), pytest.approx(1.5)),
        ("torch", pytest.approx(2), 1),
    ]
    assert capsys.readouterr().out.split() == ["a", "sum", "3.00", "2.00", "-", "1.50"]


@pytest.fixture
def cuda_torch(cuda_device):
    return libraries.by_name("torch", "cuda").module


@pytest.mark.gpu
def test_stages_make_up_a_call_on_gpu(cuda_torch):
    x = cuda_torch.rand(16, 16, device="cuda")
    stages = _core.Timing.stages(x, x, 50)
    cuda_torch.cuda.synchronize()
    assert list(stages) == ["import", "checks", "stream", "allocate", "plan", "launch"]
    assert all(0 < seconds < 1e-3 for seconds in stages.values())
    assert interop._core.held_count() == 0


@pytest.mark.gpu
def test_doors_writes_a_row_for_each_call_on_gpu(cuda_torch, monkeypatch, tmp_path, capsys):
    for name, value in {"_ROUNDS": 2, "_CALLS": 2, "_CALLS_BEFORE": 2}.items():
        monkeypatch.setattr(doors, name, value)
    assert bench.run("doors", str(tmp_path / "rows.csv")) == 0
    printed = capsys.readouterr().out
    with (tmp_path / "rows.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert float(rows["interop.graph of the same, replay"]["ratio"]) > 0
    for group, name in {
        "adapted": "adapt(cupy.negative) on torch",
        "raw_kernel": "adopt of it on CuPy",
        "tvm_ffi": "tvm_ffi.Function of Python, no work",
        "triton": "adopt of its kernel on torch",
        "numba": "adopt of its kernel on its arrays",
        "bridge": "bridge of it on torch",
    }.items():
        assert (name in rows) != (f"{group}: skipped: " in printed)


@pytest.mark.gpu
def test_overhead_writes_a_row_for_each_call_on_gpu(cuda_torch, monkeypatch, tmp_path, capsys):
    for name, value in {"_WARM_UP": 2, "BLOCKS": 2, "_CALLS": 3}.items():
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(overhead, "_PAIRS", 5)
    monkeypatch.setattr(threads, "_SECONDS", 0.01)
    monkeypatch.setattr(first_calls, "_COUNT", 3)
    assert bench.run("overhead", str(tmp_path / "rows.csv")) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    for name in ("one launch of the kernel, from C++", "torch.matmul", overhead._TORCH, f"{overhead._TORCH}: launch"):
        assert float(rows[name]["microseconds"]) > 0
    for name in (
        overhead._TORCH,
        *(f"interop.add on torch, {what}" for what in _UNLIKE),
        "interop.less on torch",
        "interop.add(out=, stream=) on torch",
        *(f"interop.{what} on torch, 8 threads" for what in ("add", "add(out=)", "matmul")),
        *(f"interop.matmul on torch, {dtype}: first call of a shape" for dtype in ("float32", "float16")),
    ):
        assert float(rows[name]["ratio"]) > 0
    printed = capsys.readouterr().out
    for name in launches.WAYS:
        assert (name in rows) != (f"{name}: skipped: " in printed)
        assert name not in rows or float(rows[name]["microseconds"]) > 0
    assert "of which, us: import " in printed
    if (jax := measure.try_import("jax")) and jax_has_cuda(jax):
        assert float(rows[jax_programs.BY_OPERATOR]["ratio"]) > 0
        assert (jax_programs.BY_CALL in rows) == (measure.try_import("cupy") is not None)


@pytest.mark.gpu
def test_gradients_prints_a_row_for_each_product_on_gpu(cuda_torch, monkeypatch, tmp_path):
    for name, value in {"_WARM_UP": 2, "BLOCKS": 2, "_CALLS": 3}.items():
        monkeypatch.setattr(measure, name, value)
    for name, value in {"_SIZES": (16, 32), "_SAMPLES": 2, "warm_up": lambda _: None}.items():
        monkeypatch.setattr(gradients, name, value)
    assert bench.run("gradients", str(tmp_path / "rows.csv")) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 6 * 3
    assert all(float(row["wall_us"]) > 0 for row in rows)
    assert {row["n"] for row in rows if row["host_us"]} == {"16"}


@pytest.mark.gpu
def test_operators_prints_a_row_for_each_call_on_gpu(cuda_torch, monkeypatch, tmp_path):
    for name, value in {"_WARM_UP": 2, "BLOCKS": 2, "_CALLS": 3}.items():
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(operators, "warm_up", lambda _: None)
    assert bench.run("operators", str(tmp_path / "rows.csv")) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 + 3 + 3
    assert all(float(row["host_us"]) > 0 for row in rows)


@pytest.mark.gpu
def test_memory_prints_a_row_for_each_way_on_gpu(cuda_torch, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measure, "BLOCKS", 2)
    small = {"_CALLS": 3, "_SLOW_CALLS": 2, "_REPEATS": 2, "_BYTES": 1 << 20, "_ROWS": 64, "_MANAGED": 1 << 12}
    for name, value in {**small, "warm_up": lambda _: None}.items():
        monkeypatch.setattr(memory, name, value)
    assert bench.run("memory", str(tmp_path / "rows.csv")) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["value"]) > 0 and float(row["ratio"]) > 0 for row in rows)
    tables = {row["table"] for row in rows}
    assert sum(table.startswith("copy on the device, ") for table in tables) == 5 * 6
    assert sum(table.startswith("copy to the ") for table in tables) == 2 * 2 * 2
    printed = capsys.readouterr().out
    assert ("numcu.div" in {row["row"] for row in rows}) != ("numcu: skipped" in printed)
    assert any(row["row"].endswith("from C++") for row in rows) != ("no nvcc" in printed)
    assert "torch.divide" in {row["row"] for row in rows}


@pytest.mark.gpu
def test_matmul_prints_a_row_for_each_product_on_gpu(cuda_torch, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(matmul, "warm_up", lambda _: None)
    assert bench.run("matmul", str(tmp_path / "rows.csv"), "1024x64x64") == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["dtype"] for row in rows} == {"float32", "float16", "bfloat16"}
    assert {"torch", "interop None", "interop tiled"} <= {row["backend"] for row in rows}
    assert all(float(row["tflops"]) > 0 for row in rows)
    assert "geometric mean" in capsys.readouterr().out


@pytest.mark.gpu
def test_small_calls_give_a_row_for_each_library_on_gpu(cuda_torch, monkeypatch, capsys):
    monkeypatch.setattr(elementwise, "_NODES", 3)
    cupy = measure.try_import("cupy")
    rows = list(elementwise._small_calls(cuda_torch, cupy, measure.has_compiler()))
    assert {"interop", "torch", *(["cupy"] if cupy else [])} == {row["backend"] for row in rows}
    assert all(row["microseconds"] > 0 and row["ratio_to_torch"] > 0 for row in rows)
    assert "graphs of 3: their operands stay in the L2 cache" in capsys.readouterr().out


@pytest.mark.gpu
def test_examples_give_a_row_for_each_way_on_gpu(cuda_torch, monkeypatch, tmp_path, capsys):
    for name, value in {"_WARM_UP": 2, "BLOCKS": 2, "_CALLS": 3}.items():
        monkeypatch.setattr(measure, name, value)
    for name, value in {"_SIDES": (16, 512), "_SECONDS": 0}.items():
        monkeypatch.setattr(examples, name, value)
    assert bench.run("examples", str(tmp_path / "rows.csv")) == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["microseconds"]) > 0 for row in rows)
    assert {"torch: .cuda(), matmul, .cpu().numpy()", "interop.asarray"} <= {row["row"] for row in rows}
    of_numpy = [row for row in rows if 'execution="cuda"' in row["row"]]
    assert {row["example"].split("GPU, ")[1] for row in of_numpy} >= {"16 x 16 float32", "512 x 512 float32"}
    if "no nvcc" not in capsys.readouterr().out:
        assert all(
            row["row"].startswith("ctypes: cudaMalloc")
            for row in rows
            if "NumPy arrays on" in row["example"] and float(row["ratio"]) == 1
        )
        assert {"a call in C++", "interop.load", "operator of PyTorch around interop.load"} <= {x["row"] for x in rows}


def test_ratios_of_examples_are_to_the_first_way(capsys):
    rows = list(examples._table("an example", {"before": 4.0, "now": 3.0}))
    assert [(row["row"], row["ratio"]) for row in rows] == [("before", 1), ("now", 0.75)]
    assert "an example" in capsys.readouterr().out


def test_wrong_examples_are_not_timed(torch):
    right = np.ones(3, "float32")
    examples._check({"right": lambda: torch.ones(3)}, right)
    with pytest.raises(AssertionError, match="wrong one is wrong; nothing was timed"):
        examples._check({"right": lambda: right, "wrong one": lambda: right + 1}, right)


def test_wrong_products_are_not_timed(torch):
    for dtype in ("float32", "bfloat16", "int32", "complex64"):
        product = matmul._Product("square", dtype, (16, 16), (16, 16))
        kind = getattr(torch, dtype)
        a, b = (torch.arange(256).reshape(16, 16).to(kind) * factor for factor in (1, 3))
        right = interop.matmul(a, b)
        matmul._check_rows(torch, product, "tiled", (a, b, right))
        right[3, 4] *= 1.5 if dtype != "int32" else 2
        with pytest.raises(AssertionError, match=r"16x16@16x16 NN, tiled: error .* is above"):
            matmul._check_rows(torch, product, "tiled", (a, b, right))
