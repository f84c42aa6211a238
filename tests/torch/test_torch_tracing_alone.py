"""Torch's compiler in processes of their own: the first call, what is imported, programs that are saved and loaded."""

from __future__ import annotations

import pytest
from helpers import alone, c_functions

import interop

torch = pytest.importorskip("torch")

FIRST = {
    "a product": "f = lambda a: interop.matmul(a, a) + 1",
    "matmul itself": "f = interop.matmul; args = (a, a)",
    "a partial function": "f = functools.partial(interop.matmul, epilogue='relu'); args = (a, a)",
    "elementwise functions": "f = lambda a: interop.divide(interop.add(a, 2), a, where_zero=0)",
    "an expression": "e = interop.elementwise('where(x > 0, x * s, y)'); f = lambda a: e(a, 2.5, 1)",
    "a C function": "e = interop.load(path, declared, memory='host').twice.returning(y='x'); f = lambda a: e(a, 16)",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    text = "void twice(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = 2 * x[i]; }"
    return str(c_functions.build(text, tmp_path_factory.mktemp("alone") / "libtwice.so"))


@pytest.mark.parametrize("made", FIRST.values(), ids=FIRST)
def test_the_first_call_of_a_process_is_compiled_whole(made, library, tmp_path):
    code = f"""
        import functools, sys
        path, declared = {library!r}, "void twice(const float* x, float* y, int n);"
        assert not any(name.startswith(("torch", "interop.torch")) for name in sys.modules)
        import torch
        a = torch.arange(-8.0, 8.0).reshape(4, 4)
        args = (a,)
        {made}
        assert "torch._dynamo" not in sys.modules
        counted = []
        def backend(graph, inputs):
            counted.append(graph)
            return graph.forward
        found = torch.compile(f, fullgraph=True, backend=backend)(*args)
        assert not torch._dynamo.utils.counters["graph_break"], torch._dynamo.utils.counters
        assert len(counted) == 1
        torch.testing.assert_close(found, f(*args), rtol=0, atol=0, equal_nan=True)
        print("whole")
    """
    assert alone.run(code, tmp_path) == "whole\n"


def test_nothing_of_torch_is_loaded_before_it_is_needed(library, tmp_path):
    code = f"""
        import sys
        def loaded(*names):
            return [name for name in names if name in sys.modules]
        lib = interop.load({library!r}, "void twice(const float* x, float* y, int n);", memory="host")
        f = interop.elementwise("x * y")
        x = np.ones((2, 2), "float32")
        interop.matmul(x, x), interop.add(x, x), f(x, x), lib.twice(x, x.copy(), 4)
        print(loaded("torch", "interop.torch"))
        import torch
        x = torch.ones(2, 2)
        interop.matmul(x, x), interop.add(x, x), f(x, x), lib.twice(x, x.clone(), 4)
        print(loaded("torch._dynamo", "torch._inductor", "interop.torch"))
        x.requires_grad_()
        f(interop.add(interop.matmul(x, x), x), x).sum().backward()
        print(loaded("torch._dynamo", "torch._inductor"))
    """
    assert alone.run(code, tmp_path) == "[]\n[]\n[]\n"


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))
        self.scaled = interop.elementwise("x * s + where(x > y, x, y)")

    def forward(self, x):
        return interop.add(self.scaled(interop.matmul(x, self.weight, epilogue="relu"), 0.5, 2), 1)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_is_loaded_where_the_operators_are_registered(strict, tmp_path):
    x, module = torch.linspace(-1, 1, 20).reshape(5, 4), Layers()
    program = torch.export.export(module, (x,), strict=strict, dynamic_shapes=({0: torch.export.Dim("rows")},))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called.count("interop.matmul.default") == 1
    assert not any("aten.mm" in name or "aten.matmul" in name for name in called)
    torch.testing.assert_close(program.module()(x[:3]), module(x[:3]))
    if strict:  # once is enough of a process
        torch.export.save(program, tmp_path / "program.pt2")
        torch.save(x, tmp_path / "x.pt")
        code = """
            import torch
            import interop.torch
            program = torch.export.load("program.pt2").module()
            torch.save(program(torch.load("x.pt")), "y.pt")
        """
        alone.run(code, tmp_path)
        torch.testing.assert_close(torch.load(tmp_path / "y.pt"), module(x).detach())
