"""What the tests of torch's transforms share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request):
    """The device of the tensors: the same tests run on the host and on a GPU."""
    if request.param == "cuda":
        request.getfixturevalue("cuda_device")
    return request.param
