"""Every parameter of every public function, with values that nobody should give it; and calls of the wrong shape."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import re

import numpy as np
import pytest
from helpers import machine
from helpers.kernels import PlayedRawKernel, played

import interop
import interop.testing
from interop._operations.table import FUNCTIONS as OF_ELEMENTS

X = np.ones((2, 2))
PLAYED_FUNCTION = played("tvm_ffi.core", "Function")()
OPERATIONS = list(OF_ELEMENTS)
UNARY = ("negative", "abs")


class MineError(Exception):
    """What an object of the caller's raises itself."""


def _raises(*_):
    raise MineError


class Raises:
    __bool__ = __index__ = __eq__ = __hash__ = __repr__ = __str__ = __len__ = __iter__ = _raises
    __int__ = __float__ = __complex__ = __fspath__ = __contains__ = _raises


class Float(float):
    pass


#: Values by name. Each is right for some parameter, and wrong for most.
ODD = {
    "None": None,
    "1": 1,
    "True": True,
    "np.True_": np.True_,
    "np.int64": np.int64(1),
    "thousands of digits": 10**5000,
    "-1": -1,
    "1.5": 1.5,
    "nan": float("nan"),
    "complex": 1j,
    "str": "x",
    "bytes": b"x",
    "list": [],
    "tuple": (),
    "dict": {},
    "object": object(),
    "class": Float,
    "Float": Float(2.0),
    "raises": Raises(),
    "surrogate": "\ud800",
    "long str": "x" * 100_000,
    "long list": [0] * 100_000,
    "lines": "a\nb\n",
    "null": "a\0b",
    "('1', 0)": ("1", 0),
    "huge pair": (10**5000, 2**40),
    "module of surrogates": type("Odd", (), {"__module__": "\ud800"})(),
}
#: No executable, and no function of the caller's: what is given to be called would be called.


def _host(function, name):
    def call(value):
        return getattr(interop, function)(*[X] * (1 if function in UNARY else 2), **{name: value})

    return call


def _operand(function, place):
    def call(value):
        operands = [X] * (1 if function in UNARY else 2)
        operands[place] = value
        return getattr(interop, function)(*operands)

    return call


def _view(array=X):
    return interop.asarray(array)


#: What makes arrays, copies them, or describes a function, with arguments that are right.
RIGHT = {
    **dict.fromkeys(("empty", "zeros", "ones"), ((2,), "float32")),
    "full": ((2,), 1.5),
    **{f"{name}_like": (X,) for name in ("empty", "zeros", "ones")},
    "full_like": (X, 1.5),
    "arange": (2,),
    "copy": (X,),
    "copyto": (np.zeros((2, 2)), X),
    "memory_pool": (),
    "operator": ("odd::one", lambda x: x, "x[n] -> [n]"),
}
#: What the values of these parameters may raise beside TypeError and ValueError.
MORE = {**dict.fromkeys(("value", "src", "start", "stop", "step"), (OverflowError,)), "device": (interop.CudaError,)}


def _given(function, name):
    """What calls it with a value in place of one argument."""
    place = list(inspect.signature(getattr(interop, function)).parameters).index(name)

    def call(value):
        right = RIGHT[function]
        if place < len(right):
            return getattr(interop, function)(*right[:place], value, *right[place + 1 :])
        return getattr(interop, function)(*right, **{name: value})

    return call


@functools.cache
def _handle():
    return interop.share(X, copy=True)


def _set_allocator(value):
    try:
        interop.set_allocator(value)
    finally:
        interop.set_allocator(None)


def _graph(name):
    def call(value):
        try:
            interop.graph(**{name: value})
        except interop.CudaError:
            if machine.gpu_count() > 0 or name == "device":
                raise  # else the value is right, and there is no GPU

    return call


#: (the function's whole name, the parameter's, what calls it with a value, exceptions beside TypeError and ValueError)
PARAMETERS = [
    *((f"interop.{op}", "x" if op in UNARY else "ab"[k], _operand(op, k), (OverflowError,))
      for op in OPERATIONS for k in range(1 if op in UNARY else 2)),
    *((f"interop.{op}", name, _host(op, name), ())
      for op in ("add", "negative", "equal", "pow") for name in ("out", "stream", "execution")),
    ("interop.divide", "where_zero", _host("divide", "where_zero"), (OverflowError,)),
    *(("interop.matmul", name, _operand("matmul", k), ()) for k, name in enumerate("ab")),
    *(("interop.matmul", name, _host("matmul", name), (OverflowError,)) for name in (
        "out", "dtype", "c", "alpha", "bias", "epilogue", "aux", "scale_a", "scale_b", "precision", "backend",
        "autotune", "stream", "execution")),
    ("interop.matmul", "beta", lambda value: interop.matmul(X, X, c=X, beta=value), (OverflowError,)),
    ("interop.matmul", "alpha", lambda value: interop.matmul(X.astype("int8"), X.astype("int8"), alpha=value),
     (OverflowError,)),
    ("interop.adapt", "function", lambda value: interop.adapt(value, "numpy"), ()),
    ("interop.adapt", "library", lambda value: interop.adapt(np.sum, value), ()),
    *(("interop.adapt", name, lambda value, name=name: interop.adapt(np.sum, "numpy", **{name: value}), ())
      for name in ("writes", "copy")),
    ("interop.adapt", "stream", lambda value: interop.adapt(np.sum, "numpy")(X, stream=value), ()),
    ("interop.adopt", "kernel", interop.adopt, ()),
    *(("interop.adopt", name, lambda value, name=name: interop.adopt(PlayedRawKernel(), **{name: value}), ())
      for name in inspect.signature(interop.adopt).parameters if name not in ("kernel", "signature")),
    ("interop.adopt", "signature", lambda value: interop.adopt(PLAYED_FUNCTION, value), ()),
    ("interop.asarray", "x", interop.asarray, ()),
    ("interop.bridge", "function", lambda value: interop.bridge(value, to="torch"), ()),
    ("interop.bridge", "to", lambda value: interop.bridge(np.sum, to=value), ()),
    ("interop.convert", "x", lambda value: interop.convert(value, "numpy"), ()),
    ("interop.convert", "library", lambda value: interop.convert(X, value), ()),
    ("interop.convert", "stream", lambda value: interop.convert(X, "interop", stream=value), ()),
    ("interop.elementwise", "expression", interop.elementwise, ()),
    ("interop.elementwise", "x", interop.elementwise("x + y"), (OverflowError,)),
    ("interop.elementwise", "y", lambda value: interop.elementwise("x + y")(X, value), (OverflowError,)),
    *(("interop.elementwise", name, lambda value, name=name: interop.elementwise("x + 1")(X, **{name: value}), ())
      for name in ("out", "stream", "execution")),
    ("interop.explain", "function", interop.explain, ()),
    ("interop.add", "out", lambda value: interop.explain(interop.add, X, X, out=value), ()),
    ("interop.matmul", "alpha", lambda value: interop.explain(interop.matmul, X, X, alpha=value), (OverflowError,)),
    *((f"interop.{function}", name, _given(function, name), MORE.get(name, ()))
      for function in RIGHT for name in inspect.signature(getattr(interop, function)).parameters),
    *(("interop.graph", name, _graph(name), MORE.get(name, ())) for name in ("stream", "device", "pool")),
    ("interop.set_allocator", "allocator", _set_allocator, ()),
    ("interop.share", "x", interop.share, (BufferError,)),
    ("interop.share", "copy", lambda value: interop.share(X, copy=value), (BufferError,)),
    ("interop.open", "h", interop.open, ()),
    ("interop.open", "library", lambda value: interop.open(_handle(), value), ()),
    ("interop.open", "stream", lambda value: interop.open(_handle(), stream=value), ()),
    ("interop.tensor_map", "array", lambda value: interop.tensor_map(value, box=16), ()),
    *(("interop.tensor_map", name, lambda value, name=name: interop.tensor_map("x", **{"box": 16, name: value}), ())
      for name in inspect.signature(interop.tensor_map).parameters if name != "array"),
    ("interop.operator", "call", lambda value: interop.operator("odd::one", {"cpu": value}, RIGHT["operator"][2]), ()),
    ("interop.register", "kind", interop.register, ()),
    *(("interop.register", name, lambda value, name=name: interop.register(Raises, **{name: value, "writable": 2}), ())
      for name in ("name", "export", "current_stream", "empty")),
    ("interop.register", "writable", lambda value: interop.register(Raises, writable=value), ()),
    ("interop.autotune", "path", interop.autotune, ()),
    ("interop.autotune", "path", interop.autotune.load, (OSError,)),
    *(("interop.Array.__dlpack__", name, lambda value, name=name: _view().__dlpack__(**{name: value}), (BufferError,))
      for name in ("stream", "max_version", "dl_device", "copy")),
    *(("interop.testing.check_producer", name,
       lambda value, name=name: interop.testing.check_producer(
           **{"make": lambda x: x, "dtypes": ("int8",), "layouts": ("0-d",), name: value}), ())
      for name in ("dtypes", "layouts", "streams")),
    ("interop.testing.check_producer", "make",
     lambda value: interop.testing.check_producer(None if value is Float else value, dtypes=("int8",)), ()),
    ("interop.Array.__array__", "copy", lambda value: _view().__array__(copy=value), ()),
    *(("interop.Array.to", name, lambda value, name=name: _view().to(**{name: value}), (interop.CudaError,))
      for name in ("memory", "device", "stream")),
    ("interop.Array.astype", "dtype", lambda value: _view().astype(value), ()),
    *((f"interop.Array.{function}", name, lambda value, function=function, given=given, name=name:
       getattr(interop.zeros(3, "int8", memory="managed"), function)(*given, **{name: value}), ())
      for function, given, names in (
          ("prefetch", (), ("device", "stream")), ("advise", ("read_mostly",), ("device", "value")))
      for name in names),
    ("interop.Array.advise", "advice", lambda value: _view().advise(value), ()),
    ("interop.Array.resize", "shape", lambda value: interop.zeros(3, "int8", memory="host").resize(value), ()),
    ("interop.Array.reshape", "shape", lambda value: _view().reshape(value), ()),
    ("interop.Array.transpose", "axes", lambda value: _view().transpose(value), ()),
]  # fmt: skip


#: Other words by which a message may name the parameter.
ALSO = {
    **{(f"interop.{op}", name): "the operands are complex128; accepted" for op in OPERATIONS for name in "ab"},
    ("interop.elementwise", "expression"): "the expression",
    **{("interop.register", name): "has no protocol by which it could be read" for name in ("kind", "writable")},
    ("interop.testing.check_producer", "streams"): "stream is",
    **{("interop.register", name): "writable is 2" for name in ("name", "export", "current_stream", "empty")},
}


def _described(parameter):
    return f"{parameter[0].removeprefix('interop.')}-{parameter[1]}"


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("parameter", PARAMETERS, ids=[f"{k}-{_described(p)}" for k, p in enumerate(PARAMETERS)])
def test_odd_values_are_taken_rightly_or_refused_by_name(parameter, odd):
    function, name, call, more = parameter
    refused = None
    try:
        call(ODD[odd])
    except MineError:
        return  # the caller's own
    except Exception as error:
        refused = error
    if refused is None or (isinstance(refused, OSError) and OSError in more):  # of the file
        return
    message = str(refused)
    assert type(refused) in (TypeError, ValueError, *more), repr(refused)
    assert re.match(rf"{re.escape(function)}\b", message), message
    assert re.search(rf"\b{name}\b|{ALSO.get((function, name), name)}", message), message
    assert len(message) < 600, message
    assert "\n" not in message or name in ("expression", "signature"), message


def test_the_table_has_every_parameter():
    """A new parameter of a function is tried, too."""
    tried = {(function.removeprefix("interop."), name) for function, name, *_ in PARAMETERS}
    same = {"subtract", "multiply", "divide", "floor_divide", "remainder", "minimum", "maximum", "not_equal"}
    same |= {"less", "less_equal", "greater", "greater_equal", "abs"}  # of one declaration
    for function in interop.__all__:
        if not inspect.isfunction(getattr(interop, function)) or function in ("kernel", "load"):
            continue  # tests/test_kernel.py, tests/load/test_load.py
        for name, parameter in inspect.signature(getattr(interop, function)).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            options = name in ("out", "stream", "execution") and function in same
            assert options or (function, name) in tried, f"{function}: {name}"


# ---- calls that do not fit ----

FITTING = {
    "adapt": (X.sum, "numpy"),
    "adopt": (PlayedRawKernel(),),
    "asarray": (X,),
    "bridge": (abs,),
    "convert": (X, "numpy"),
    "elementwise": ("x + 1",),
    "explain": None,  # which takes anything
    "get_cmake_dir": (),
    "get_include": (),
    "graph": (),
    "kernel": ("", ""),
    "load": ("",),
    "matmul": (X, X),
    "open": (None,),
    "profile": (),
    "register": (Float,),
    "autotune": (None,),
    "set_allocator": (None,),
    "share": (X,),
    "tensor_map": ("x",),
    **RIGHT,
    **{op: (X,) if op in UNARY else (X, X) for op in OPERATIONS},
}


def test_every_function_is_tried():
    functions = {name for name in interop.__all__ if inspect.isfunction(getattr(interop, name))}
    assert functions | {"autotune"} == set(FITTING)


@pytest.mark.parametrize("name", [name for name, fitting in FITTING.items() if fitting is not None])
def test_calls_that_do_not_fit_name_the_function(name):
    function, arguments = getattr(interop, name), FITTING[name]
    whole = rf"^interop\.{name}: "
    with pytest.raises(TypeError, match=whole + "got an unexpected keyword argument 'outt'"):
        function(*arguments, outt=1)
    with pytest.raises(TypeError, match=whole + "got an unexpected keyword argument 'axis'; accepted: "):
        function(*arguments, axis=1)
    with pytest.raises(TypeError, match=whole + r"takes \d positional arguments? but 20 were given; accepted: "):
        function(*[None] * 20)
    if arguments and name != "autotune":
        count = len(arguments)
        missing = f"missing {count} required positional argument{'s' if count > 1 else ''}: '"
        with pytest.raises(TypeError, match=whole + missing):
            function()


def test_the_keyword_that_was_meant_is_named(jax):
    a, view = jax.numpy.ones((2, 2)), _view()
    for call, meant in (
        (lambda: interop.add(X, X, outt=X), "out"),
        (lambda: interop.divide(X, X, where_zeros=1), "where_zero"),
        (lambda: interop.matmul(X, X, alhpa=2), "alpha"),
        (lambda: interop.matmul(X, X, transpose_a=2), None),
        (lambda: interop.add(X, X, axis=0), None),
        (lambda: interop.add(X, X, where_zero=0), None),  # divide's alone
        (lambda: interop.explain(interop.add, X, X, outt=X), "out"),
        (lambda: interop.elementwise("x + 1")(X, outt=X), "out"),
        (lambda: interop.elementwise("x + 1")(X, execute="cuda"), "execution"),
        (lambda: interop.convert(view, "numpy", steam=None), "stream"),
        (lambda: interop.adapt(abs, "numpy", write=()), "writes"),
        (lambda: interop.adopt(PlayedRawKernel(), write=()), "writes"),
        (lambda: interop.bridge(abs, too="jax"), "to"),
        (lambda: interop.register(Float, exports=None), "export"),
        (lambda: interop.jax.matmul(a, a, epilog="relu"), "epilogue"),
        (lambda: interop.testing.check_producer(lambda x: x, dtype=()), "dtypes"),
    ):
        with pytest.raises(TypeError, match=r"^interop\.[\w.]+.*: got an unexpected keyword argument") as caught:
            call()
        found = re.search(r"did you mean '(\w+)'\?", str(caught.value))
        assert (found and found[1]) == meant


def test_positional_only_and_doubled_arguments():
    with pytest.raises(TypeError, match=r"^interop.add: got the positional-only argument 'a' as a keyword argument"):
        interop.add(a=X, b=X)
    with pytest.raises(TypeError, match=r"^interop.matmul: got the positional-only argument 'b'"):
        interop.matmul(X, b=X)
    with pytest.raises(TypeError, match=r"^interop.autotune: got multiple values for argument 'path'"):
        interop.autotune("x", path="y")
    with pytest.raises(TypeError, match=r"^interop.asarray: got the positional-only argument 'x'"):
        interop.asarray(x=X)


@pytest.mark.parametrize(
    ("method", "arguments", "keywords", "words"),
    [
        ("item", (0,), {}, "takes 0 positional arguments but 1 was given; accepted: none"),
        ("item", (), {"index": 0}, "got an unexpected keyword argument 'index'; accepted: none"),
        ("tolist", (1,), {}, "takes 0 positional arguments but 1 was given; accepted: none"),
        ("synchronize", (), {"stream": 1}, "got an unexpected keyword argument 'stream'; accepted: none"),
        ("resize", (), {}, "missing 1 required positional argument: 'shape'"),
        ("resize", (2, 3), {}, "takes 1 positional argument but 2 were given; accepted: shape"),
        ("resize", (), {"shape": 3}, "got the positional-only argument 'shape' as a keyword argument"),
        ("reshape", (), {"shape": 4}, "got the positional-only argument 'shape' as a keyword argument"),
        ("reshape", (4,), {"order": "F"}, "got an unexpected keyword argument 'order'; accepted: none"),
        ("transpose", (), {"axes": (1, 0)}, "got the positional-only argument 'axes' as a keyword argument"),
        ("to", ("device",), {}, "takes 0 positional arguments but 1 was given; accepted: none"),
        ("prefetch", (0, 1), {}, "takes 1 positional argument but 2 were given; accepted: device"),
        ("advise", (), {}, "missing 1 required positional argument: 'advice'"),
    ],
)
def test_calls_of_methods_that_do_not_fit_name_the_method(method, arguments, keywords, words):
    with pytest.raises(TypeError, match=rf"^interop\.Array\.{method}: {words}"):
        getattr(_view(), method)(*arguments, **keywords)


@pytest.mark.parametrize("name", [name for name in FITTING if name != "autotune"])
def test_functions_are_plain_functions(name):
    function = getattr(interop, name)
    assert inspect.isfunction(function)
    assert (
        all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()) or name == "explain"
    )
    assert pickle.loads(pickle.dumps(function, 0)) is function
    assert copy.copy(function) is function
    assert function.__annotations__.keys() >= inspect.signature(function).parameters.keys()


def test_a_type_error_from_within_is_left_as_it_is():
    class Kind(type):
        @property
        def __module__(cls):
            raise TypeError("words of its own")

    with pytest.raises(TypeError, match="^words of its own$"):
        interop.register(Kind("Odd", (), {}))
