"""What torch's compiler traces in place of the call of a bridged function: it stays outside of graphs."""

from __future__ import annotations

import sys
from typing import Any

import torch

from interop.torch._calls import leave
from interop.torch._tracing import skip_body

__all__ = ["call"]


def call(bridge: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Have the compiler call the function between its graphs. Called by anyone else, it is the function itself."""
    if not torch.compiler.is_dynamo_compiling():
        return bridge(*args, **kwargs)
    return leave(
        f"{bridge._label}: torch's graphs cannot have a call of it; accepted: torch.compile without fullgraph, which "
        "makes the call between its graphs"
    )


skip_body(sys.modules["interop"].Bridge.__call__)
