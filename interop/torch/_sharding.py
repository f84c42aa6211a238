"""The moment at which torch is told how distributed tensors (DTensor) are cut for an operator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["is_distributed", "know_distributed"]


def is_distributed(tensors: Sequence[Any]) -> bool:
    """Is one of these tensors distributed?"""
    if torch.compiler.is_dynamo_compiling():
        return False  # what is traced is also run
    module = sys.modules.get("torch.distributed.tensor")
    distributed = getattr(module, "DTensor", ())  # not there yet while another thread imports the module
    return any(isinstance(x, distributed) for x in tensors)


def know_distributed(tensors: Sequence[Any]) -> bool:
    """Is one of these tensors distributed? Then torch knows from now on how products are cut.

    What that needs is loaded for nobody else.
    """
    if not is_distributed(tensors):
        return False
    from interop.torch import _matmul_sharding  # noqa: F401 - for its effect

    return True
