"""CUDA kernels for the arrays of every library: any array in, the same kind of array out.

>>> import numpy, interop
>>> interop.matmul(numpy.eye(2), numpy.ones((2, 2)))
array([[1., 1.],
       [1., 1.]])
"""

from __future__ import annotations

import atexit as _atexit
import importlib as _importlib
import pkgutil as _pkgutil
from typing import Any as _Any

# Python started in the project's own folder imports this file from there, beside which no compiled half lies: the
# installed package's folder joins the search.
__path__ = _pkgutil.extend_path(__path__, __name__)

try:
    from interop import _core
except ImportError as error:
    if "subinterpreter" in str(error):  # nothing is missing: there it cannot be imported
        raise
    raise ImportError(
        "interop: the compiled half (interop._core) cannot be imported. In a source tree, install the package first: "
        f"'pip install .'. The loader said: {error}"
    ) from error

from interop._version import __version__

if _core.build_info().get("version") != __version__:
    raise ImportError(
        f"interop: these Python files are version {__version__} and the compiled half is "
        f"{_core.build_info().get('version')}. Install the package again: "
        "'pip install --force-reinstall interop-dlpack', or 'pip install .' in its sources."
    )

from interop._adapt import Adapted, adapt
from interop._adopt import Adopted, adopt
from interop._autotune import autotune
from interop._bridge import Bridge, bridge
from interop._comparisons import equal, greater, greater_equal, less, less_equal, not_equal
from interop._compiled import CompiledFunction
from interop._convert import asarray, convert
from interop._copying import copy, copyto
from interop._core import Array, CudaError
from interop._creation import (
    arange,
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from interop._elementwise import (
    abs,  # noqa: A004 - the array API's name
    add,
    divide,
    floor_divide,
    maximum,
    minimum,
    multiply,
    negative,
    pow,  # noqa: A004 - the array API's name
    remainder,
    subtract,
)
from interop._explain import ExplainedArgument, Explanation, explain
from interop._expression import Expression, elementwise
from interop._graph import Graph, GraphPool, graph
from interop._kernel import Kernel, kernel
from interop._load import Function, Library, Opaque, load
from interop._matmul import matmul
from interop._operator import Operator, operator
from interop._paths import get_cmake_dir, get_include
from interop._pools import MemoryPool, memory_pool, set_allocator
from interop._profile import Profile, profile
from interop._register import register
from interop._share import SharedHandle, open, share  # noqa: A004 - what it does to a handle
from interop._tensor_map import TensorMap, tensor_map
from interop._variables import Globals, Variable

Array.__module__ = CudaError.__module__ = "interop"
_atexit.register(_core.close, 0.8)

__all__ = [  # not "jax": a star import would load JAX
    "Adapted",
    "Adopted",
    "Array",
    "Bridge",
    "CompiledFunction",
    "CudaError",
    "ExplainedArgument",
    "Explanation",
    "Expression",
    "Function",
    "Globals",
    "Graph",
    "GraphPool",
    "Kernel",
    "Library",
    "MemoryPool",
    "Opaque",
    "Operator",
    "Profile",
    "SharedHandle",
    "TensorMap",
    "Variable",
    "__version__",
    "abs",
    "adapt",
    "add",
    "adopt",
    "arange",
    "asarray",
    "autotune",
    "bridge",
    "convert",
    "copy",
    "copyto",
    "divide",
    "elementwise",
    "empty",
    "empty_like",
    "equal",
    "explain",
    "floor_divide",
    "full",
    "full_like",
    "get_cmake_dir",
    "get_include",
    "graph",
    "greater",
    "greater_equal",
    "kernel",
    "less",
    "less_equal",
    "load",
    "matmul",
    "maximum",
    "memory_pool",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "ones",
    "ones_like",
    "open",
    "operator",
    "pow",
    "profile",
    "register",
    "remainder",
    "set_allocator",
    "share",
    "subtract",
    "tensor_map",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> _Any:
    if name in ("jax", "testing", "torch"):  # loaded on first use: they load JAX and torch, or are seldom needed
        return _importlib.import_module(f"interop.{name}")
    raise AttributeError(f"module 'interop' has no attribute {name!r}")
