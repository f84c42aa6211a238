"""Arrays in tuples, lists, dicts, named tuples and dataclasses, of functions of `interop.adapt`."""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses

import numpy as np
import pytest

import interop

Pair = collections.namedtuple("Pair", "first second")  # noqa: PYI024 - one without annotations


@dataclasses.dataclass(frozen=True)
class Fit:
    slope: object
    name: str


def kinds(*args, **kwargs):
    """Return the types of the arguments, and the arguments."""
    return [type(x) for x in (*args, *kwargs.values())], args, kwargs


def test_nested_arguments_and_results(torch):
    t, u = torch.zeros(2), torch.ones(2)
    found = interop.adapt(kinds, "numpy")([t, (u, 1)], {"a": t}, Pair(t, "b"), Fit(u, "c"), key=[[u]])
    types, (a, b, c, d), named = found
    assert types == [list, dict, Pair, Fit, list]
    assert a[0] is t
    assert a[1] == (u, 1)
    assert a[1][0] is u
    assert b["a"] is t
    assert c.first is t
    assert c.second == "b"
    assert d.slope is u
    assert d.name == "c"
    assert named["key"][0][0] is u

    def nested(x):
        assert type(x) is np.ndarray
        return (x + 1, [x + 2], {"k": x + 3}, Pair(x + 4, None), Fit(x + 5, "f"), collections.OrderedDict(z=x + 6))

    one, (two,), three, four, five, six = interop.adapt(nested, "numpy")(t)
    for k, x in enumerate((one, two, three["k"], four.first, five.slope, six["z"]), start=1):
        assert torch.equal(x, torch.full((2,), float(k)))
    assert type(four) is Pair
    assert four.second is None
    assert five.name == "f"
    assert type(six) is collections.OrderedDict


def test_buffers_of_no_library_are_passed_as_they_are(torch):
    x = np.arange(3.0)
    buffers = (b"ab", bytearray(b"ab"), memoryview(x), (ctypes.c_float * 3)(), array.array("f", [1]))
    _, (_, *same), named = interop.adapt(kinds, "numpy")(torch.ones(1), *buffers, last=[buffers[1]])
    assert [*map(id, same)] == [*map(id, buffers)]
    assert named["last"][0] is buffers[1]


def test_containers_are_copied(torch):
    values, t = {"x": torch.ones(2)}, torch.zeros(2)

    def update(values, t):
        values["x"] = values["x"] + 1
        values["y"] = t
        return values

    made = interop.adapt(update, "numpy")(values, t)
    assert made["x"].tolist() == [2, 2]
    assert made["y"] is t
    assert values.keys() == {"x"}
    assert values["x"].tolist() == [1, 1]


def test_dataclasses_are_copied_without_their_init(torch):
    ran = []

    @dataclasses.dataclass(frozen=True, slots=True)
    class Model:
        x: object
        scale: dataclasses.InitVar[int]
        made: object = dataclasses.field(init=False)
        unset: object = dataclasses.field(init=False)

        def __post_init__(self, scale):
            ran.append(scale)
            object.__setattr__(self, "made", self.x * scale)

    model = Model(torch.ones(2), 3)

    def negated(model):
        assert type(model.x) is type(model.made) is np.ndarray
        assert not hasattr(model, "unset")
        object.__setattr__(model, "made", -model.made)
        return model

    made = interop.adapt(negated, "numpy")(model)
    assert type(made) is Model
    assert made.x is model.x
    assert made.made.tolist() == [-3, -3]
    assert model.made.tolist() == [3, 3]
    assert ran == [3]


def test_what_holds_itself(torch):
    plain = [1]
    plain.append({"again": plain})
    call, t = interop.adapt(kinds, "numpy"), torch.ones(1)
    assert call(t, plain)[1][1] is plain
    plain.append(t)
    with pytest.raises(ValueError, match=r"adapt\(kinds\): a list with arrays in it holds itself; accepted"):
        call(t, plain)
    shared = [t]
    _, ((one, two),), _ = call((shared, shared))  # twice, but not in itself
    assert one[0] is two[0] is t


def test_what_holds_no_array_is_passed_as_it_is(torch):
    mine, also, t = [1, [2]], {"a": object()}, torch.zeros(1)
    _, (x, y, z), _ = interop.adapt(kinds, "numpy")(mine, also, [t, mine])
    assert x is mine
    assert y is also
    assert z[1] is mine
