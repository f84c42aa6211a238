"""Many calls, many threads and many streams: what shows only after a long time.

    python tests/soak.py calls                             a million calls with the arrays of each library
    python tests/soak.py calls --library torch-cuda --library cupy-cuda --count 100000
    python tests/soak.py calls --library jax-cuda --control      what the library's own product does in its place
    python tests/soak.py threads                           8 threads x 8 streams x every card, for a minute
    python tests/soak.py threads --seconds 600 --library torch-cuda
    python tests/soak.py streams                           10000 results of every function, used on side streams
    python tests/soak.py streams --library torch-cuda --function matmul --count 100000

`calls` requires that memory is as it was: of the process, of Python and of the GPU, with nothing held and every export
given back. First the result of each call is dropped; then the inputs are deleted right after each call, their memory is
written anew at once, and the values are checked. Memory of the GPU is that of the whole card: run nothing else there
(`helpers/soak_calls.py`).

`threads` mixes the libraries: each iteration has arrays of two, on any streams, on any card, and checks the product
(`helpers/soak_threads.py`).

`streams` makes each result on one stream and reads it on another, which is held up; it drops the result, with
`record_stream` where torch made it, takes blocks of its size straight after and fills them, and requires that what was
read is right (`helpers/side_streams.py`).

Without a GPU all three run over the libraries on the host, where results are read late instead of on another stream.
The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # before JAX starts: it would take most of the GPU

import pytest
from helpers import device, libraries, machine, side_streams
from helpers.soak_calls import DEVICE, HOST, VARIANTS, names_here, soak_calls, subject
from helpers.soak_threads import Place, soak_threads

import interop


def calls(names: list[str], variants: list[str], count: int, seconds: float, control: bool = False) -> int:
    wrong = False
    for name in names or names_here():
        try:
            arrays = subject(name, control)
        except pytest.skip.Exception as reason:
            print(f"{name:<14}skipped: {reason}")
            continue
        for variant in variants:
            wrong |= bool(soak_calls(arrays, variant, count, seconds))
    return int(wrong)


def threads(names: list[str], seconds: float, count: int, streams: int) -> int:
    every = {repr(library): library for library in libraries.HOST + libraries.DEVICE}
    found = []
    for library in map(every.get, names or map(repr, libraries.DEVICE if machine.gpu_count() else libraries.HOST)):
        try:
            library.load()
        except pytest.skip.Exception as reason:
            print(f"{library!r}: skipped: {reason}")
            continue
        found.append(library)
    if not found:
        print("none of these libraries is here")
        return 1
    cards = list(range(machine.gpu_count())) or [0]
    places = {card: [Place(library, card, streams) for library in found] for card in cards}
    where = f"cards {cards}, {streams} streams of each library on each" if machine.gpu_count() else "the host"
    print(f"{count} threads, {seconds:g} s, {', '.join(map(repr, found))}, on {where}", flush=True)
    return soak_threads(places, seconds, count)


def streams(names: list[str], functions: list[str], count: int) -> int:
    wrong, made = False, 0
    every = {repr(library): library for library in libraries.HOST + libraries.DEVICE if library.name != "numba"}
    here = [name for name, library in every.items() if machine.gpu_count() or library.device == "cpu"]
    for name in names or here:
        try:
            every[name].load()
        except pytest.skip.Exception as reason:
            print(f"{name:<14}skipped: {reason}")
            continue
        place = side_streams.place_of(every[name])
        works = side_streams.works(place)
        for function in works if not functions else [function for function in functions if function in works]:
            start = time.monotonic()
            try:
                fault = side_streams.soak(place, works[function], count, random.Random(function))
            except Exception:
                fault = traceback.format_exc()
                place.read.clear()
            if not device.eventually(lambda: interop._core.held_count() == 0):
                fault = fault or f"{interop._core.held_count()} inputs are still held"
            elapsed = (time.monotonic() - start) / count
            print(
                f"{name:<14}{function:<20}{count:>9} results {elapsed * 1e6:>7.1f} us each: {fault or 'ok'}", flush=True
            )
            wrong |= bool(fault)
            made += 1
    if not made:
        print("no such function of these libraries is here")
    return int(wrong or not made)


# ---- the command ----


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    many = what.add_parser("calls", help="a million calls, and flat memory")
    many.add_argument("--library", action="append", default=[], choices=HOST + DEVICE, help="may be repeated; all")
    many.add_argument("--variant", action="append", default=[], choices=VARIANTS, help="may be repeated; both")
    many.add_argument("--count", type=int, default=1_000_000, help="calls of each")
    many.add_argument("--seconds", type=float, default=3600, help="the most that each takes")
    many.add_argument("--control", action="store_true", help="the library's own product instead: what grows without us")
    wide = what.add_parser("threads", help="many threads, and right values")
    every = [repr(library) for library in libraries.HOST + libraries.DEVICE]
    wide.add_argument("--library", action="append", default=[], choices=every, help="may be repeated; all")
    wide.add_argument("--seconds", type=float, default=60)
    wide.add_argument("--threads", type=int, default=8)
    wide.add_argument("--streams", type=int, default=8, help="of each library, on each card")
    aside = what.add_parser("streams", help="results on side streams, and right values")
    placed = [name for name in every if "numba" not in name]
    aside.add_argument("--library", action="append", default=[], choices=placed, help="may be repeated; all")
    aside.add_argument("--function", action="append", default=[], help="by its name in what is printed; all")
    aside.add_argument("--count", type=int, default=10_000, help="results of each")
    options = parser.parse_args(arguments)
    if not machine.gpu_count():
        print("no GPU here: over the libraries on the host")
    if options.what == "calls":
        variants = options.variant or list(VARIANTS)
        return calls(options.library, variants, options.count, options.seconds, options.control)
    if options.what == "streams":
        return streams(options.library, options.function, options.count)
    return threads(options.library, options.seconds, options.threads, options.streams)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
