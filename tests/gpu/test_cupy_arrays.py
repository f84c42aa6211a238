"""CuPy's arrays are read as CuPy has them, in every layout, and subclasses by their own attributes."""

from __future__ import annotations

import pytest

import interop


def layouts(cupy):
    a = cupy.arange(120, dtype="float32").reshape(4, 5, 6)
    return {
        "compact": a,
        "transposed": a.T,
        "stepped": a[::2],
        "backwards": a[:, ::-1],
        "one row": a[1:2],
        "one column": a[:, 0:1, :],
        "a new dimension": a[..., None],
        "broadcast": cupy.broadcast_to(a[0], (3, 5, 6)),
        "Fortran order": cupy.asfortranarray(a),
        "no dimension": a.sum(),
        "empty": a[0:0],
        "offset": a[2:, 3:],
    }


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "complex128"])
def test_values_of_every_layout(cupy, dtype):
    for layout, array in layouts(cupy).items():
        x = array.astype(dtype, order="K") if layout != "broadcast" else array
        found = interop._core.read(x)
        assert found["pointer"] == x.data.ptr or x.size == 0, layout
        assert found["shape"] == x.shape, layout
        assert found["values"] == x.get().tobytes(), layout
        moving = [i for i, size in enumerate(x.shape) if size > 1] if x.size else []
        assert [found["strides"][i] * x.itemsize for i in moving] == [x.strides[i] for i in moving], layout


def test_a_subclass_has_attributes_of_its_own(cupy):
    class Halved(cupy.ndarray):
        @property
        def shape(self):
            return (3,)

    x = cupy.arange(6, dtype="float32").view(Halved)
    assert interop._core.read(x)["values"] == cupy.arange(3, dtype="float32").get().tobytes()
