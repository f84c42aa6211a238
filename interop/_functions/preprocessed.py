"""A header after its preprocessor, as the declarations that stand in it one after another."""

from __future__ import annotations

import io
import os
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Piece", "Source", "import_reader", "pieces_of", "without_attributes"]

#: What compilers of C++ on Linux define, as far as headers ask; and words of compilers that mean nothing here.
_DEFINED = (
    "__cplusplus 201703L",
    "__GNUC__ 12",
    "__GNUC_MINOR__ 2",
    "_GNU_SOURCE 1",
    "__STDC_HOSTED__ 1",
    "__linux__ 1",
    "__linux 1",
    "__unix__ 1",
    "__LP64__ 1",
    "_LP64 1",
    "__CHAR_BIT__ 8",
    "__SIZEOF_POINTER__ 8",
    "__ORDER_LITTLE_ENDIAN__ 1234",
    "__BYTE_ORDER__ 1234",
    "__extension__",
    "__inline inline",
    "__inline__ inline",
    "__const const",
    "__volatile__ volatile",
    "__signed__ signed",
    "restrict __restrict__",
    "_Bool bool",
)
#: Words of CUDA that say where a function runs, whatever the files of CUDA make of them.
_KEPT = {"__global__", "__device__", "__host__", "__forceinline__", "__noinline__", "__launch_bounds__"}
_MOST_FILES_DEEP = 100
_SCOPE = re.compile(r'(?P<c>extern "C")|(?P<cxx>extern "C\+\+")|(?:inline )?namespace(?P<names>[\w: ]*)')
_ATTRIBUTE_OF_CXX = re.compile(r"\[\s*\[.*?\]\s*\]", re.DOTALL)
_ATTRIBUTE = re.compile(r"\b(?:__attribute__|__attribute|__declspec|__asm__|__asm|asm|__launch_bounds__)\s*\(")
_TYPE = re.compile(r"(?:typedef|struct|class|union|enum)\b")
_OPENING, _CLOSING = {"(": 1, "[": 1, "{": 1}, {")", "]", "}"}


class Source(NamedTuple):
    """What a header has become: its declarations, the files that it includes and that were not found."""

    pieces: list[Piece]
    missing: list[str]


class Piece(NamedTuple):
    """One declaration or definition, without the body of a function."""

    text: str
    file: str
    line: int
    scope: tuple[str, ...]
    is_c: bool

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def import_reader() -> tuple[Any, Any]:
    """Return pcpp and cxxheaderparser.simple, which are imported with the first header."""
    try:
        import pcpp
        from cxxheaderparser import simple
    except ImportError as error:
        raise ImportError(
            f"interop.load: header= needs cxxheaderparser and pcpp, which cannot be imported ({error}): "
            "pip install 'interop-dlpack[headers]'"
        ) from error
    return pcpp, simple


def pieces_of(header: Path, include_path: Sequence[Path]) -> Source:
    """Return the declarations of a header and of the files that it includes, where they are found."""
    pcpp, _ = import_reader()
    reader = _preprocessor(pcpp, header, include_path)
    try:
        text = header.read_bytes().decode(errors="replace")
    except OSError as error:
        raise OSError(
            f"interop.load: header is {os.fspath(header)!r}, which cannot be read: {error.strerror}"
        ) from None
    reader.parse(text, str(header))
    try:
        pieces = list(_split(iter(reader.token, None), reader.t_WS))
    except ValueError:
        raise
    except Exception as error:  # what pcpp raises of text that no compiler takes, such as an #ifdef of nothing
        raise ValueError(
            f"interop.load: header is {os.fspath(header)!r}, whose preprocessor's lines are not understood: "
            f"{type(error).__name__}: {error}"
        ) from error
    return Source(pieces, reader.missing)


def _preprocessor(pcpp: Any, header: Path, include_path: Sequence[Path]) -> Any:
    class Preprocessor(pcpp.Preprocessor):  # type: ignore[misc]
        def on_error(self, file: str, line: int, message: str) -> None:
            if os.path.abspath(file) == str(header):  # noqa: PTH100 - a Path would look at the file
                raise ValueError(f"interop.load: {header}:{line}: {message}")

        def on_file_open(self, is_system_include: bool, path: str) -> io.StringIO:
            if self.include_depth > _MOST_FILES_DEEP:
                raise ValueError(f"interop.load: {path}: is included {_MOST_FILES_DEEP} files deep, perhaps by itself")
            return io.StringIO(Path(path).read_bytes().decode(errors="replace"))

        def on_include_not_found(self, is_malformed: bool, is_system: bool, folder: str, path: str) -> None:
            if path not in self.missing:
                self.missing.append(path)
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)

        def on_directive_handle(self, directive: Any, tokens: Any, if_passes: bool, before: Any) -> Any:
            if directive.value in ("define", "undef") and tokens and tokens[0].value in _KEPT:
                raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)
            return super().on_directive_handle(directive, tokens, if_passes, before)

        def on_directive_unknown(self, directive: Any, tokens: Any, if_passes: bool, before: Any) -> None:
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)  # #error, #pragma, #warning

        def on_comment(self, token: Any) -> bool:
            return False

    made = Preprocessor()
    made.missing = []
    made.rewrite_paths = []
    for text in (*_DEFINED, f"__{platform.machine()}__ 1"):
        made.define(text)
    beside = header.parent
    # Debian keeps what differs between machines in a folder of its own.
    of_machine = beside / (sysconfig.get_config_var("MULTIARCH") or "")
    for folder in (*include_path, beside, of_machine):
        made.add_path(str(folder))
    return made


class _Scope(NamedTuple):
    names: tuple[str, ...]
    is_c: bool


def _split(tokens: Iterable[Any], spaces: Sequence[str]) -> Iterator[Piece]:
    """Cut a file at the end of each declaration outside all brackets, and open its namespaces."""
    scopes = [_Scope((), False)]
    words: list[str] = []
    place: tuple[str, int] | None = None
    depth = body = 0  # of brackets; the place in `words` where a body began
    for token in tokens:
        word = token.value
        if token.type in spaces:
            words.append(" ")
            continue
        if place is None and not depth:
            if word in (";", "}"):
                if word == "}" and len(scopes) > 1:
                    scopes.pop()
                words.clear()
                continue
            place = os.path.abspath(token.source), token.lineno  # noqa: PTH100
        if word == "{" and not depth:
            opened = _SCOPE.fullmatch(_joined(without_attributes("".join(words))[0]))
            if opened:
                names = [x.strip() for x in (opened["names"] or "").replace("inline ", "").split("::") if x.strip()]
                is_c = bool(opened["c"]) or (scopes[-1].is_c and not opened["cxx"])
                scopes.append(_Scope((*scopes[-1].names, *names), is_c))
                words, place = [], None
                continue
            body = len(words)
        depth += (word in _OPENING) - (word in _CLOSING)
        words.append(word)
        if depth > 0 or (word not in (";", "}")):
            continue
        is_function = word == "}" and not _continues(_joined(words[:body]))
        if word == "}" and not is_function:
            continue
        if is_function:
            words = [*words[:body], ";"]
        assert place is not None
        yield Piece(_joined(words), *place, *scopes[-1])
        words, place, depth = [], None, 0


def _joined(words: Sequence[str]) -> str:
    return " ".join("".join(words).split())


def _continues(text: str) -> bool:
    """Is a closed bracket behind this text, as of a struct, no end?"""
    return text.endswith("=") or bool(_TYPE.match(text) and not text.endswith(")")) or text.startswith("typedef")


def without_attributes(text: str) -> tuple[str, str]:
    """Return a declaration without its attributes and asm, and those."""
    taken = _ATTRIBUTE_OF_CXX.findall(text)
    text = _ATTRIBUTE_OF_CXX.sub(" ", text)
    while found := _ATTRIBUTE.search(text):
        depth, end = 1, found.end()
        while depth and end < len(text):
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        taken.append(text[found.start() : end])
        text = f"{text[: found.start()]} {text[end:]}"
    return text, " ".join(taken)
