"""The moment at which torch is told how distributed tensors (DTensor) are cut for an operator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["know_distributed"]


def know_distributed(tensors: Sequence[Any]) -> None:
    """Tell torch how products are cut, if one of these tensors is distributed: nobody else loads what that needs."""
    if torch.compiler.is_dynamo_compiling():
        return  # what is traced runs, too
    module = sys.modules.get("torch.distributed.tensor")
    distributed = getattr(module, "DTensor", ())  # not there yet while another thread imports the module
    if any(isinstance(x, distributed) for x in tensors):
        from interop.torch import _matmul_sharding  # noqa: F401 - for its effect
