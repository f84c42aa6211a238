"""Threads that share what is known of types of arrays: routes, registrations, and exports that call interop again."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers.threads import THREADS, at_once, meanwhile

import interop


class Shown:
    """An array of a class that is made anew for each test, so that nothing is known of it."""

    def __init__(self, values):
        self.values = values

    @property
    def __array_interface__(self):
        return self.values.__array_interface__


def new_class(base=Shown, **members):
    return type("New", (base,), members)


def values_of(x):
    return np.asarray(x) if isinstance(x, interop.Array) else x.values if isinstance(x, Shown) else np.asarray(x)


# ---- routes and registrations ----


def test_threads_meet_a_new_type_at_once():
    def work(k, array):
        for _ in range(5):
            assert np.asarray(interop.add(array, k)).tolist() == [k + 1, k + 2, k + 3]

    for _ in range(40):
        array = new_class()(np.array([1.0, 2.0, 3.0]))
        at_once(THREADS, lambda k, array=array: work(k, array))


def test_threads_make_types_of_their_own():
    def work(k):
        for _ in range(20):
            array = new_class()(np.array([k, 1.0]))
            assert np.asarray(interop.multiply(array, 2)).tolist() == [2 * k, 2]
            with pytest.raises(TypeError, match="New"):
                interop.multiply(new_class(object)(), 2)

    at_once(THREADS, work)


def test_of_two_registrations_the_last_to_end_counts():
    class Meta(type):
        def __getattr__(cls, name):  # what a class is asked for its protocols by
            raise AttributeError(name)

    kind = Meta("Grid", (), {"__init__": Shown.__init__})
    export = lambda grid: grid.values  # noqa: E731
    grid = kind(np.ones(2))
    with meanwhile("call", "__getattr__", lambda: interop.register(kind, name="first", export=export)):
        interop.register(kind, name="second", export=export)
    assert interop._core.route(grid) == ("second", "interop.register")
    assert np.asarray(interop.add(grid, 1)).tolist() == [2, 2]


def test_threads_register_one_type():
    for round_ in range(30):
        kind = new_class()
        child = new_class(kind)
        interop.add(child(np.ones(2)), 1)  # looked at, and kept

        def work(k, kind=kind, round_=round_):
            interop.register(kind, name=f"threads-{round_}-{k}", export=lambda x: x.values)

        at_once(THREADS, work)
        found = interop._core.route(kind(np.ones(2)))
        assert found[0].startswith(f"threads-{round_}-")
        assert interop._core.route(child(np.ones(2))) == found


def test_a_type_is_registered_again_while_calls_run():
    add = interop.elementwise("x * 10000 + y * 100 + z")
    kind = new_class()
    child = new_class(kind)
    rows = np.arange(10.0)[:, None]

    def teach(row):
        def empty(shape, dtype, *_):
            made = kind(np.empty((10, *shape), dtype))
            made.row = row
            return made

        interop.register(kind, name=f"row {row}", export=lambda x: x.values[row], empty=empty)

    teach(1)

    def work(k):
        if k % 4 == 0:
            for i in range(60):
                teach(1 + (i + k) % 9)
            return
        for _ in range(60):
            arrays = kind(rows), child(rows), kind(rows)
            result = add(*arrays)
            assert result.values[result.row].tolist() == [10101.0 * result.row]  # all of one registration
            said = interop.explain(add, *arrays).arguments
            assert len({argument.library for argument in said}) == 1

    at_once(THREADS, work)


def test_a_type_is_registered_while_calls_run():
    for round_ in range(20):
        kind = new_class()
        child = new_class(kind)

        def work(k, kind=kind, child=child, round_=round_):
            if k == 0:
                make = lambda shape, dtype, *_, kind=kind: kind(np.empty(shape, dtype))  # noqa: E731
                interop.register(kind, name=f"late-{round_}", export=lambda x: x.values, empty=make)
            for _ in range(10):
                for array in (kind(np.ones(3)), child(np.ones(3))):
                    result = interop.add(array, k)
                    assert values_of(result).tolist() == [k + 1] * 3
                    assert isinstance(result, kind | interop.Array)

        at_once(THREADS, work)
        assert type(interop.add(child(np.ones(3)), 1)) is kind


def test_a_metaclass_that_changes_the_bases_of_its_classes():
    class Meta(type):
        @property
        def __module__(cls):
            if cls.changes:
                cls.changes = False
                cls.__bases__ = (type("More", cls.__bases__, {}),) if Plain in cls.__bases__ else (Other,)
                gc.collect()
            return "somewhere"

    class Base(Shown):
        pass

    class Other(Shown):
        pass

    class Plain:
        pass

    for _ in range(20):
        kind = Meta("Changing", (Base,), {"changes": True})
        assert np.asarray(interop.add(kind(np.ones(2)), 1)).tolist() == [2, 2]
        assert kind.__bases__ == (Other,)
        kind = Meta("Changing", (Plain,), {"changes": True})
        with pytest.raises(TypeError, match="accepted: arrays"):
            interop.add(kind(), 1)


# ---- calls within calls: the memory that a call hands on to the next, exports that call ----


def test_an_export_calls_the_same_function_again():
    f = interop.elementwise("x + 1")
    kind = new_class()
    interop.register(
        kind, name="nested", export=lambda x: f(x.values) if x.values.size < 4 else interop.add(x.values, 1)
    )

    def work(k):
        for _ in range(20):
            assert f(kind(np.full(3, float(k)))).__array__().tolist() == [k + 2.0] * 3
            assert interop.add(kind(np.full(5, float(k))), 1).__array__().tolist() == [k + 2.0] * 5

    at_once(THREADS, work)


ENDLESS = {
    "add": lambda x: interop.add(x, 1),
    "asarray": interop.asarray,
    "explain": lambda x: interop.explain(interop.add, x, 1),
    "expression": interop.elementwise("x + 1"),
    "kernel": interop.kernel("__global__ void f(double* x) {}", "f", grid=1),
    "matmul": lambda x: interop.matmul(x, x),
}


@pytest.mark.parametrize("f", ENDLESS.values(), ids=ENDLESS)
def test_an_export_without_end_is_an_error(f):
    kind = new_class()
    interop.register(kind, name="endless", export=lambda x: f(x))
    own = new_class()
    own.__dlpack_device__ = lambda x: (1, 0)
    own.__dlpack__ = lambda x, **_: f(x)
    for x in (kind(np.ones(3)), own(np.ones(3))):
        with pytest.raises((BufferError, RecursionError)):
            f(x)
    assert interop.elementwise("x + 1")(np.ones(3)).tolist() == [2, 2, 2]


def test_calls_from_del_in_many_threads():
    seen = []

    class Last(np.ndarray):
        def __del__(self):
            seen.append(np.asarray(interop.multiply(memoryview(np.ones(2)), 3)).tolist())

    def work(k):
        for _ in range(20):
            x = np.full(3, float(k)).view(Last)
            assert np.asarray(interop.add(interop.asarray(x), x)).tolist() == [2.0 * k] * 3
            del x

    at_once(THREADS, work)
    gc.collect()
    assert len(seen) >= THREADS * 20
    assert all(values == [3, 3] for values in seen)
