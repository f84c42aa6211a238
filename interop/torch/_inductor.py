"""Products in the code that Inductor makes of a graph: a call of the function, as it has for products of torch's own.

Without it, the code calls the operator. Torch's dispatcher then reads its seventeen arguments twice, once for autograd,
of which nothing is left in such code. That takes longer than all else of the call of a small product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.codegen import custom_extern_kernel_codegen as registry
from torch._inductor.codegen.wrapper import ExternKernelAllocLine
from torch._inductor.virtualized import V
from torch.autograd import profiler

from interop import _core
from interop.torch._matmul_function import SCALES, TERMS

__all__ = ["matmul"]


def matmul(a: torch.Tensor, b: torch.Tensor, **options: Any) -> Any:
    """Compute `interop.matmul(a, b, **options)`; a profiler shows it by the operator's name.

    Code that is kept on disk calls this by its name.
    """
    if profiler._is_profiler_enabled:  # private; it is what Inductor asks before calls of its own kernels
        with torch._C._profiler._RecordFunctionFast("interop::matmul"):
            return _core.matmul(a, b, options)
    return _core.matmul(a, b, options)


_PAIR = "torch.ops.interop.matmul_with_aux.default"


def _write_product(node: Any, writeline: Callable[[Any], None]) -> None:
    _write(node, writeline, _product(_given(node)))


def _write_pair(node: Any, writeline: Callable[[Any], None]) -> None:
    """Write the call of the operator itself; of the product, where nothing reads what its epilogue was given.

    To read an argument that is None takes torch as long as to read any other.
    """
    given = _given(node)
    is_read = node.outputs[1].get_name() not in V.graph.removed_buffers
    _write(node, writeline, _call(_PAIR, given) if is_read else f"({_product(given)},)")


def _given(node: Any) -> dict[str, str]:
    """Return the arguments of an operator's call, as they are written in code, without those that are None."""
    given = dict(zip(("a", "b", *TERMS), node.codegen_args(), strict=False))
    given |= dict(x.split("=", 1) for x in node.codegen_kwargs())
    return {name: x for name, x in given.items() if x != "None"}


def _product(given: dict[str, str]) -> str:
    return _call("interop_matmul", {SCALES.get(name, name): x for name, x in given.items()})


def _call(function: str, given: dict[str, str]) -> str:
    return f"{function}({', '.join(f'{name}={x}' for name, x in given.items())})"


def _write(node: Any, writeline: Callable[[Any], None], call: str) -> None:
    wrapper = V.graph.wrapper_code
    if V.graph.fx_wrapper:  # what is made is a graph, of operators
        writeline(ExternKernelAllocLine(wrapper, node))
        return
    while hasattr(wrapper, "parent_wrapper"):  # of a branch, which is a function in the same file
        wrapper = wrapper.parent_wrapper
    wrapper.add_import_once("from interop.torch._inductor import matmul as interop_matmul")
    writeline(f"{node.get_name()} = {call}")


# The registry, and all else of Inductor that is used here, is private: alike in torch 2.11 to 2.14.
_writers = registry.CUSTOM_EXTERN_KERNEL_CODEGEN
_writers["torch.ops.interop.matmul.default"] = registry.CustomCodegen(python=_write_product)
_writers[_PAIR] = registry.CustomCodegen(python=_write_pair)
