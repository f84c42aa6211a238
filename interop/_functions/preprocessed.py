"""A header after its preprocessor, as the declarations that stand in it one after another."""

from __future__ import annotations

import ctypes
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
    "__STDC__ 1",
    "__STDC_HOSTED__ 1",
    "__linux__ 1",
    "__linux 1",
    "__unix__ 1",
    "__LP64__ 1",
    "_LP64 1",
    "__CHAR_BIT__ 8",
    "__SIZEOF_INT128__ 16",
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
    "register",
    "_Noreturn",
)
_SIZES: dict[str, Any] = {
    "SHORT": ctypes.c_short,
    "INT": ctypes.c_int,
    "LONG": ctypes.c_long,
    "LONG_LONG": ctypes.c_longlong,
    "FLOAT": ctypes.c_float,
    "DOUBLE": ctypes.c_double,
    "LONG_DOUBLE": ctypes.c_longdouble,
    "POINTER": ctypes.c_void_p,
    "SIZE_T": ctypes.c_size_t,
    "PTRDIFF_T": ctypes.c_ssize_t,
    "WCHAR_T": ctypes.c_wchar,
}
_FIXED = ((8, ctypes.c_int8), (16, ctypes.c_int16), (32, ctypes.c_int32), (64, ctypes.c_int64))
#: Integers by the names that their limits have: signed, unsigned, the type, and what ends its numbers.
_LIMITS: tuple[tuple[str, str, Any, str], ...] = (
    ("SCHAR", "UCHAR", ctypes.c_byte, ""),
    ("SHRT", "USHRT", ctypes.c_short, ""),
    ("INT", "UINT", ctypes.c_int, ""),
    ("LONG", "ULONG", ctypes.c_long, "L"),
    ("LLONG", "ULLONG", ctypes.c_longlong, "LL"),
    *((f"INT{bits}", f"UINT{bits}", c_type, "L" * (bits == 64)) for bits, c_type in _FIXED),
    ("INTMAX", "UINTMAX", ctypes.c_int64, "L"),
    ("INTPTR", "UINTPTR", ctypes.c_ssize_t, "L"),
    ("PTRDIFF", "SIZE", ctypes.c_ssize_t, "L"),
)
#: Words of CUDA that say where a function runs, whatever the files of CUDA make of them.
_KEPT = {"__global__", "__device__", "__host__", "__forceinline__", "__noinline__", "__launch_bounds__"}
_MOST_FILES_DEEP = 100
_SCOPE = re.compile(r'(?P<c>extern "C")|(?P<cxx>extern "C\+\+")|(?:inline )?namespace(?P<names>[\w: ]*)')
_ATTRIBUTE_OF_CXX = re.compile(r"\[\s*\[.*?\]\s*\]", re.DOTALL)
_ATTRIBUTE = re.compile(r"\b(?:__attribute__|__attribute|__declspec|__asm__|__asm|asm|__launch_bounds__)\s*\(")
_TYPE = re.compile(r"(?:typedef|struct|class|union|enum)\b")
_NUMBER = re.compile(r"(?<![\w.'\"])(0[xX][\da-fA-F]+|0[bB][01]+|\d+)([uUlLzZ]*)(?![\w.'\"])")
_SEPARATOR = re.compile(r"\b(\d[\da-fA-FxXbB]*)'(?=[\da-fA-F])")
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
    is_hidden: bool  # in a namespace without a name

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
        text = _text_of(header)
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
            return io.StringIO(_text_of(Path(path)))

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

        def on_unknown_macro_in_expr(self, name: str) -> int:
            return int(name == "true")

        def on_comment(self, token: Any) -> bool:
            return False

    made = Preprocessor()
    made.missing = []
    made.rewrite_paths = []
    evaluator = made.evaluator
    made.evaluator = lambda tokens, **names: evaluator(made.tokenize(_plain_numbers(tokens)), **names)
    for text in (*_DEFINED, *_limits(), f"__{platform.machine()}__ 1"):
        made.define(text)
    beside = header.parent
    # Debian keeps what differs between machines in a folder of its own.
    of_machine = beside / (sysconfig.get_config_var("MULTIARCH") or "")
    for folder in (*include_path, beside, of_machine):
        made.add_path(str(folder))
    return made


def _text_of(path: Path) -> str:
    """Return a file without its mark of Unicode, and without the quotes in numbers, which pcpp does not know."""
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    while (plain := _SEPARATOR.sub(r"\1", text)) != text:
        text = plain
    return text


def _limits() -> Iterator[str]:
    """Give the sizes and limits of this machine's C: also those of files of the compiler, which may not be found."""
    for name, c_type in _SIZES.items():
        yield f"__SIZEOF_{name}__ {ctypes.sizeof(c_type)}"
    for signed, unsigned, c_type, end in _LIMITS:
        bits = 8 * ctypes.sizeof(c_type)
        most = f"{2 ** (bits - 1) - 1}{end}"
        macro = "LONG_LONG" if signed == "LLONG" else signed
        yield from (f"{signed}_MAX {most}", f"{signed}_MIN (-{most} - 1)")
        yield from (f"__{macro}_MAX__ {most}", f"__{macro}_WIDTH__ {bits}")
        most = f"{2**bits - 1}{'U' * (bits >= 32)}{end}"
        yield f"{unsigned}_MAX {most}"
        if signed not in ("SCHAR", "SHRT", "INT", "LONG", "LLONG"):
            yield f"__{unsigned}_MAX__ {most}"
    yield from ("CHAR_BIT 8", "CHAR_MAX SCHAR_MAX", "CHAR_MIN SCHAR_MIN", "__SIZE_WIDTH__ __PTRDIFF_WIDTH__")
    yield f"__WORDSIZE {8 * ctypes.sizeof(ctypes.c_void_p)}"


def _plain_numbers(tokens: Iterable[Any]) -> str:
    """Return an expression of #if with its numbers as pcpp knows them: "3U" for "0b11ull"."""

    def plain(found: re.Match[str]) -> str:
        octal = re.fullmatch(r"0\d+", found[1])
        number = int(found[1], 8 if octal else 0)
        return f"{number}{'U' * ('u' in found[2].lower() or number >= 2**63)}"

    return _NUMBER.sub(plain, "".join(token.value for token in tokens))


class _Scope(NamedTuple):
    names: tuple[str, ...]
    is_c: bool
    is_hidden: bool


def _split(tokens: Iterable[Any], spaces: Sequence[str]) -> Iterator[Piece]:
    """Cut a file at the end of each declaration outside all brackets, and open its namespaces."""
    scopes = [_Scope((), False, False)]
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
                is_hidden = scopes[-1].is_hidden or (opened["names"] is not None and not names)
                scopes.append(_Scope((*scopes[-1].names, *names), is_c, is_hidden))
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
        file, line = place
        yield Piece(_joined(words), file, line, *scopes[-1])
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
