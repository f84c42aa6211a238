"""The files that a source in C++ may include, by what its text says."""

from __future__ import annotations

import re

__all__ = ["names_in"]

_SPACE = r"(?:[^\S\n]|/\*.*?\*/)*"
_INCLUDED = re.compile(
    rf"(?:(?:^|\*/){_SPACE}(?:\#|%:){_SPACE}(?:include|include_next|import)\b"
    rf"|\b__has_include(?:_next)?{_SPACE}\(){_SPACE}"
    r"""(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>)?""",
    re.DOTALL | re.MULTILINE,
)


def names_in(text: str) -> list[str] | None:
    """Return the names that a text includes or asks for; None where one is a macro's, and so is not known.

    A directive counts in a comment and in an #if of any kind, too: a name too many does no harm.
    """
    names = [found["quoted"] or found["angled"] for found in _INCLUDED.finditer(text.replace("\\\n", ""))]
    return None if None in names else [*dict.fromkeys(names)]
