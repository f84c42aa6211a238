"""The signature of an operator: its grammar, what else it must say, and errors that point at the character."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop._operators import grammar
from interop._operators.signature import KEYWORDS, LEADING, Operand, Signature, parse

LABEL = "here: signature"

REFUSED = [  # text, where the caret stands, what the message says
    ("", 0, "the text is empty; accepted: a signature such as 'x[..., n], s[n] -> [..., n]'"),
    (" \n ", 3, "the text is empty"),
    ("x[n]", 4, "the end stands here; accepted: ',' and another input, or '->' and the results"),
    ("x[n] ->", 7, "the end stands here; accepted: the axes of a result in brackets"),
    ("-> [n]", 0, "'->' stands here; accepted: the name of an input"),
    ("x[n], -> [n]", 6, "'->' stands here; accepted: the name of an input"),
    ("[n] -> [n]", 0, "'[' stands here; accepted: the name of an input"),
    ("x[n] -> y", 9, "the end stands here; accepted: the axes of a result"),
    ("x[n] -> [n],", 12, "the end stands here; accepted: the axes of a result"),
    ("x[n -> [n]", 4, "'->' stands here; accepted: ',' and another axis, or ']'"),
    ("x[n m] -> [n]", 4, "'m' stands here; accepted: ',' and another axis"),
    ("x[n,] -> [n]", 4, "']' stands here; accepted: a letter, a number, or '...' for leading axes"),
    ("x[,n] -> [n]", 2, "',' stands here; accepted: a letter, a number"),
    ("x[n, ...] -> [n]", 5, "'...' stands behind another axis; accepted: '...' as the first of the axes, once"),
    ("x[..., ...] -> [...]", 7, "'...' stands behind another axis"),
    ("x[n] -> [n] [n]", 12, "'[' stands here; accepted: ',', or '; sum k', or the end"),
    ("x[n] -> [n];", 12, "the end stands here; accepted: sum"),
    ("x[n] -> [n]; max n", 13, "'max' stands here; accepted: sum"),
    ("x[n] -> [n]; sum", 16, "the end stands here; accepted: a letter of an input's axes"),
    ("x[n] -> [n]; sum 3", 17, "'3' stands here; accepted: a letter of an input's axes"),
    ("x[n+1] -> [n]", 3, "'+' has no meaning here"),
    ("x(n) -> [n]", 1, "'(' has no meaning here"),
    ("x[n]  é -> [n]", 6, "'é' has no meaning here"),
    ("x[²] -> []", 2, "'²' has no meaning here"),
    ("x[-1] -> []", 2, "'-' has no meaning here"),
    ("x[9223372036854775808] -> []", 2, "no array has this size; accepted: up to 9223372036854775807"),
    ("x[" + "9" * 5000 + "] -> []", 2, "no array has this size"),
    ("x?[n] -> [n]", 1, "'?' has no meaning here"),  # no optional inputs
    ("x! -> [n]", 1, "'!' has no meaning here"),  # and none that is written
    ("x[n], x[m] -> [n]", 6, "x stands here again; accepted: another name"),
    ("x[n] -> x[n]", 8, "x stands here again"),
    ("x[n] -> y[n], y[n]", 14, "y stands here again"),
    ("x[x] -> []", 0, "x is the size of an axis, too; accepted: another name"),
    ("x[n], n -> [n]", 6, "n is the size of an axis, too"),
    ("x[n], stream -> [n]", 6, "stream is a keyword of the call; accepted: another name"),
    ("x[n] -> execution[n]", 8, "execution is a keyword of the call"),
    ("lambda[n] -> [n]", 0, "lambda is a word of Python's; accepted: another name"),
    ("x[if] -> [if]", 2, "if is a word of Python's; accepted: another letter"),
    ("eps, n -> []", 0, "no input is an array; accepted: at least one, such as x[n]"),
    ("x[n], s[k] -> [m]", 15, r"m is in no input; accepted: a letter of the inputs (k, n), or sizes={'m': f}"),
    ("x[n] -> [..., n]", 9, "no input has leading axes; accepted: '...' in an input, too"),
    ("x[..., n] -> [..., n], y[n]", 23, "x has leading axes, and this result has none; accepted: '...' in each result"),
    ("x[..., n] -> []", 13, "x has leading axes, and this result has none"),
    ("x[n] -> []; sum k", 16, "k is in no input; accepted: a letter of the inputs (n)"),
    ("x[n] -> [n]; sum n", 17, "n is an axis of a result, which is no sum over it; accepted: another letter"),
    ("x[n] -> []; sum n, n", 19, "n stands here again; accepted: once"),
]


@pytest.mark.parametrize(("text", "at", "message"), REFUSED)
def test_what_is_refused_is_pointed_at(text, at, message):
    with pytest.raises(ValueError, match="^here: signature: ") as caught:
        parse(LABEL, text)
    said, line, caret = str(caught.value).split("\n")
    assert message in said
    assert line[4:].removesuffix("...") in "".join(c if c.isprintable() else " " for c in text)
    assert caret.index("^") - 4 == at
    assert set(caret.strip()) == {"^"}


def test_a_long_text_is_cut_around_the_place():
    names = [f"x{k}[n]" for k in range(100)]
    text = ", ".join([*names, "y[+]", *[f"z{k}[n]" for k in range(100)]]) + " -> [n]"
    with pytest.raises(ValueError, match="'\\+' has no meaning") as caught:
        parse(LABEL, text)
    _, line, caret = str(caught.value).split("\n")
    assert line[caret.index("^")] == "+"
    assert len(line) < 220
    assert line[4:7] == line[-3:] == "..."


@pytest.mark.parametrize("text", [None, 3, b"x[n] -> [n]", ["x"]])
def test_only_a_str_is_a_text(text):
    with pytest.raises(TypeError, match=rf"^here: signature is {type(text).__name__}; accepted: a signature such as"):
        parse(LABEL, text)


def test_what_is_read():
    signature = parse(LABEL, " x [... ,n,3],s[ n ] , eps,z[]->y[...,n] , [...,07];sum m".replace("[ n ]", "[n,m]"))
    assert signature.inputs == (
        Operand("x", (..., "n", 3)),
        Operand("s", ("n", "m")),
        Operand("eps", None),
        Operand("z", ()),
    )
    assert signature.outputs == (Operand("y", (..., "n")), Operand("", (..., 7)))
    assert signature.sums == ("m",)
    assert signature.arrays == (0, 1, 3)
    assert signature.letters == ("n", "m")
    assert signature.has_leading
    assert str(signature) == "x[..., n, 3], s[n, m], eps, z[] -> y[..., n], [..., 7]; sum m"


def test_equal_texts_are_equal_signatures():
    a, b, c = (parse(LABEL, text) for text in ("x[n]->[n]", " x[ n ] -> [n]", "x[m] -> [m]"))
    assert a == b
    assert len({a, b, c}) == 2
    assert a != c
    assert a != "x[n] -> [n]"


# ---- properties ----

_FIRST = string.ascii_letters + "_"
NAMES = st.text(_FIRST + string.digits, min_size=1, max_size=4).filter(
    lambda name: name[0] in _FIRST and name.isidentifier() and name not in (*KEYWORDS, "if", "in", "is", "or", "as")
    and name not in ("for", "not", "and", "def", "del", "try", "None", "True", "elif", "else", "from", "pass", "with")
)  # fmt: skip


@st.composite
def signatures(draw):
    """Return one that says all it must."""
    letters = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    names = draw(st.lists(NAMES.filter(lambda name: name not in letters), min_size=1, max_size=5, unique=True))
    axis = st.sampled_from(letters) | st.integers(0, 9)
    has_leading = draw(st.booleans())

    def axes(of, leads):
        return (*((...,) if leads else ()), *draw(st.lists(of, max_size=3)))

    inputs = [Operand(names[0], axes(axis, has_leading))]
    for name in names[1:]:
        kind = draw(st.sampled_from(["number", "array", "leading"]))
        inputs.append(Operand(name, None if kind == "number" else axes(axis, has_leading and kind == "leading")))
    known = [letter for operand in inputs for letter in operand.letters]
    of_results = st.sampled_from(known) | st.integers(0, 9) if known else st.integers(0, 9)
    outputs = tuple(Operand("", axes(of_results, has_leading)) for _ in range(draw(st.integers(1, 3))))
    left = sorted(set(known) - {letter for operand in outputs for letter in operand.letters})
    sums = tuple(draw(st.lists(st.sampled_from(left), max_size=2, unique=True))) if left else ()
    return Signature(tuple(inputs), outputs, sums)


@given(signatures())
def test_what_is_printed_is_read_as_the_same(signature):
    assert parse(LABEL, str(signature)) == signature
    read = parse(LABEL, str(signature))
    assert (read.inputs, read.outputs, read.sums) == (signature.inputs, signature.outputs, signature.sums)


@given(signatures(), st.data())
def test_white_space_says_nothing(signature, data):
    text = str(signature).replace(" ", "")
    if signature.sums:
        text = text.replace(";sum", ";sum ")
    tokens = text.replace("...", "…")
    blank = st.sampled_from(["", " ", "\n", "\t  "])
    spread = "".join(c + (data.draw(blank) if not c.isalnum() and c not in "_-" else "") for c in tokens)
    assert parse(LABEL, spread.replace("…", "...")) == signature


@given(signatures(), st.data())
def test_any_change_is_read_or_pointed_at(signature, data):
    text = str(signature)
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 3)))
    changed = text[:at] + data.draw(st.text(max_size=3)) + text[end:]
    _check(changed)


@given(st.text(max_size=40) | st.text("xyn.,[]->; 3sum", max_size=40))
def test_any_text_is_read_or_pointed_at(text):
    _check(text)


def _check(text):
    try:
        read = parse(LABEL, text)
    except ValueError as error:
        said, line, caret = str(error).split("\n")
        assert said.startswith("here: signature: ")
        assert "; accepted: " in said
        assert 4 <= caret.index("^") <= len(line)
    else:
        assert parse(LABEL, str(read)) == read


# ---- shapes ----


@given(signatures(), st.data())
def test_shapes_that_fit_give_the_shapes_of_the_results(signature, data):
    sizes = {letter: data.draw(st.integers(0, 5)) for letter in signature.letters}
    if signature.has_leading:
        sizes["..."] = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    shapes = [signature.inputs[place].shape(sizes) for place in signature.arrays]
    found = signature.sizes_of("here", shapes, {})
    assert {letter: found[letter] for letter in sizes} == sizes
    expected = []
    for operand in signature.outputs:
        lead = sizes["..."] if operand.has_leading else ()
        expected.append(lead + tuple(x if isinstance(x, int) else sizes[x] for x in operand.axes if x is not ...))
    assert list(signature.result_shapes(found)) == expected


@given(signatures(), st.data())
def test_another_shape_is_pointed_at(signature, data):
    sizes = dict.fromkeys(signature.letters, 2) | ({"...": (2,)} if signature.has_leading else {})
    shapes = [signature.inputs[place].shape(sizes) for place in signature.arrays]
    k = data.draw(st.integers(0, len(shapes) - 1))
    operand = signature.inputs[signature.arrays[k]]
    if not operand.has_leading:
        longer = [*shapes[:k], (*shapes[k], 1), *shapes[k + 1 :]]
        with pytest.raises(ValueError, match=rf"^here: {operand.name} has {len(shapes[k]) + 1} dimensions") as caught:
            signature.sizes_of("here", longer, {})
        _, line, caret = str(caught.value).split("\n")
        assert line[caret.index("^") : len(caret)] == str(operand)


SHAPES = [  # signature, shapes, where the carets begin, what the message says
    ("x[n], y[n] -> [n]", [(3,), (4,)], 8, "n is 4 in y, of shape (4,), and 3 in x; accepted: one size"),
    ("x[n, n] -> [n]", [(3, 4)], 5, "n is 4 in x, of shape (3, 4), and 3 in x; accepted: one size"),
    ("x[3, n] -> [n]", [(2, 4)], 2, "x has size 2 here, shape (2, 4); accepted: 3"),
    ("x[..., n], s[..., n] -> [..., n]", [(2, 3, 4), (3, 4)], 13,
     "... is (3,) in s, of shape (3, 4), and (2, 3) in x; accepted: the same, as nothing is broadcast"),
    ("x[..., n, m] -> [..., n]", [(4,)], 0, "x has 1 dimensions, shape (4,); accepted: 2 or more"),
    ("x[] -> []", [(1,)], 0, "x has 1 dimensions, shape (1,); accepted: 0"),
    ("x[n, m] -> []", [()], 0, "x has 0 dimensions, shape (); accepted: 2"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes", "at", "message"), SHAPES)
def test_shapes_that_do_not_fit(text, shapes, at, message):
    with pytest.raises(ValueError, match="^here: ") as caught:
        parse(LABEL, text).sizes_of("here", shapes, {})
    said, line, caret = str(caught.value).split("\n")
    assert said == f"here: {message}"
    assert line[4:] == text
    assert caret.index("^") - 4 == at


def test_each_operand_can_be_pointed_at():
    signature = parse(LABEL, "x[..., n], eps, s[n] -> y[..., n], [..., 3]; sum k".replace("s[n]", "s[n, k]"))
    operands = (*signature.inputs, *signature.outputs)
    for place, operand in enumerate(operands):
        _, line, caret = signature.pointed(place).split("\n")
        assert line[caret.index("^") : len(caret)] == str(operand)
        for axis, of in enumerate(operand.axes or ()):
            _, line, caret = signature.pointed(place, axis).split("\n")
            assert line[caret.index("^") : len(caret)] == ("..." if of is ... else str(of))


def test_leading_is_a_letter_like_another():
    signature = parse(LABEL, f"x[..., {LEADING}] -> [..., {LEADING}]")
    assert signature.sizes_of("here", [(2, 3, 4)], {})[LEADING] == 4


def test_the_page_has_the_grammar():
    lines = [line.strip() for line in (grammar.__doc__ or "").split("\n") if line.startswith("    ")]
    page = Path(__file__).parents[2] / "docs" / "operators.md"
    blocks = re.findall(r"```text\n(.*?)```", page.read_text(), re.DOTALL)
    assert [line.strip() for line in blocks[0].splitlines()] == lines
