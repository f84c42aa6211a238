"""The `interop` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import interop

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `interop` command with these arguments (those of the process by default) and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="interop", description="CUDA kernels for the arrays of every library (the distribution interop-dlpack)."
    )
    parser.add_argument("--version", action="version", version=f"interop-dlpack {interop.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("info", help="print versions, devices, array libraries and CUDA libraries")
    commands.add_parser("demo", help="run interop.matmul on every array library and device that is here")
    bench = commands.add_parser("bench", help="measure against the array libraries (needs a GPU)")
    bench.add_argument(
        "what",
        choices=[
            *("matmul", "elementwise", "functions", "overhead", "doors", "examples", "gradients", "operators"),
            "memory",
        ],
        help="large products, sums, every function beside torch's, host time, functions and kernels of other "
        "libraries, the examples of the pages beside how it was done before, or memory",
    )
    bench.add_argument("--csv", metavar="FILE", help="write every row to this file too")
    bench.add_argument(
        "--plot",
        metavar="FILE",
        help="draw bars of elementwise, matmul or overhead into this file (needs matplotlib)",
    )
    bench.add_argument(
        "--only", metavar="TEXT", default="", help="of the products or the functions, those whose row has this text"
    )
    bench.add_argument("--table", metavar="FILE", help="write the page of matmul, in Markdown, too")
    conformance = commands.add_parser(
        "conformance", help="print what every array library, dtype and layout that is here gives"
    )
    conformance.add_argument("--update", metavar="PAGE", help="write the tables into this page instead")
    options = parser.parse_args(arguments)
    try:
        status = _run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, `head` say, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter flushes, and complains
        return 1
    except OSError as error:
        given = (getattr(options, name, None) for name in ("csv", "plot", "table", "update"))
        if error.filename is None or Path(error.filename) not in [Path(path) for path in given if path is not None]:
            raise
        parser.exit(2, f"interop {options.command}: {error.filename}: {error.strerror}\n")


def _run(options: argparse.Namespace) -> int:
    if options.command == "info":
        from interop._commands import info

        print(info.report())
        return 0
    if options.command == "demo":
        from interop._commands import demo

        return demo.run()
    if options.command == "conformance":
        return _conformance(options.update)
    from interop._commands import bench

    return bench.run(options.what, options.csv, options.only, options.plot, options.table)


def _conformance(page: str | None) -> int:
    from interop._commands import conformance

    if page is not None:
        return 0 if conformance.update(Path(page)) else 1
    text, good = conformance.report()
    print(text)
    return 0 if good else 1
