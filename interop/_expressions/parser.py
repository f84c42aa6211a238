"""Reads the text of an expression: Python's own syntax, by `ast`, and of that only what is listed here."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from interop import _core
from interop._arguments import shown
from interop._operations.table import OPERATIONS, Operation

__all__ = ["Apply", "Literal", "Name", "Node", "Parsed", "parse"]

OPTIONS = ("out", "stream", "execution")  # of a call, so no parameter's name
#: What Python's syntax has for an operator, by its symbol.
_BINARY: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_UNARY: dict[type, str] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}
_COMPARISONS: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_OF_SYMBOL = {(operation.symbol, operation.arity): operation for operation in OPERATIONS.values() if operation.symbol}
#: Those that are written as functions.
FUNCTIONS = {name: operation for name, operation in OPERATIONS.items() if not operation.symbol and name != "copy"}
_LONGEST = 400  # characters of an expression that an error shows
_MOST_DEPTH = 200
_ACCEPTED_DEPTH = f"{_MOST_DEPTH} operations within one another"
_Applied = tuple[Operation, tuple[ast.expr, ...]]  # and its operands, not yet read


@dataclass(frozen=True)
class Name:
    """A parameter."""

    name: str


@dataclass(frozen=True)
class Literal:
    """A number in the text."""

    value: complex


@dataclass(frozen=True)
class Apply:
    """An operation on the values of other nodes."""

    operation: Operation
    args: tuple[int, ...]  #: their places
    written: ast.expr  #: in the text


Node = Name | Literal | Apply


@dataclass(frozen=True, eq=False)
class Parsed:
    """An expression, read. What stands in it more than once is one node."""

    text: str
    nodes: tuple[Node, ...]  #: each behind those that it applies to; the last one is the whole
    parameters: tuple[str, ...]  #: in order of appearance

    def text_of(self, node: Apply) -> str:
        """Return what was written there, for a message."""
        return ast.get_source_segment(self.text, node.written) or self.text


def parse(text: str) -> Parsed:
    """Return the expression, read in a time that grows as its length does.

    Raises TypeError if `text` is no str, and ValueError, which points at the character, for what is not accepted.
    """
    if not isinstance(text, str):
        raise TypeError(f"interop.elementwise: the expression is {shown(text)}; accepted: a str such as 'x * y + a'")
    return _Parser(text).run()


_BLANK = re.compile(r"\\\r?\n|[\t\r\n\f\v]")  # a line that goes on, and white space


class _Parser:
    def __init__(self, text: str) -> None:
        # Python takes no blank before an expression; a line feed would end it.
        self.text = text.strip()
        self.parameters: dict[str, None] = {}
        self.nodes: list[Node] = []
        self.places: dict[Any, int] = {}  # of the nodes, by what they are

    def run(self) -> Parsed:
        if not self.text:
            self.refuse(0, "the expression is empty", "one such as x * y + a")
        if "#" in self.text:  # which would hide what follows it, now that all is one line
            self.refuse(self.text.index("#"), "a comment, or a str", "one expression, over any number of lines")
        line = _BLANK.sub(lambda blank: " " * len(blank[0]), self.text)
        try:
            tree = ast.parse(line, mode="eval")
        except SyntaxError as error:
            at = min(error.offset - 1, len(self.text)) if error.offset else len(self.text)
            self.refuse(at, f"not an expression of Python: {error.msg}", "one such as x * y + a")
        except (RecursionError, MemoryError):  # of Python's parser
            self.refuse(0, "nested too deeply", _ACCEPTED_DEPTH)
        except ValueError as error:  # null characters
            self.refuse(0, f"not an expression of Python: {error}", "one such as x * y + a")
        self.line = line
        self.read_all(tree.body)
        if not self.parameters:
            self.refuse(0, "there is no parameter", "an expression with at least one name, for an array")
        return Parsed(line, tuple(self.nodes), tuple(self.parameters))

    def read_all(self, root: ast.expr) -> None:
        """Read the nodes in order of appearance, without recursion: operands first."""
        done: list[int] = []  # places of operands that wait for their operation
        waiting: list[tuple[ast.expr, int, Operation | None]] = [(root, 0, None)]
        while waiting:
            written, depth, operation = waiting.pop()
            if operation:  # its operands are done
                args = tuple(done[-operation.arity :])
                del done[-operation.arity :]
                done.append(self.place_of((operation, args), Apply(operation, args, written)))
                continue
            if depth > _MOST_DEPTH:
                self.refuse(self.start(written), "nested too deeply here", _ACCEPTED_DEPTH)
            read = self.read(written)
            if isinstance(read, Name):
                done.append(self.place_of(read.name, read))
            elif isinstance(read, Literal):  # 1, 1.0 and True are equal, but not the same
                done.append(self.place_of((type(read.value), read.value), read))
            else:
                operation, operands = read
                waiting.append((written, depth, operation))
                waiting.extend((x, depth + 1, None) for x in reversed(operands))

    def place_of(self, key: Any, node: Node) -> int:
        """Return the place of a node, which is new if none has that key."""
        place = self.places.setdefault(key, len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(node)
        return place

    # ---- where something is, and what to say of it ----

    def start(self, node: ast.expr | ast.keyword) -> int:
        return self.character(node.col_offset)

    def after(self, node: ast.expr) -> int:
        """Return the place of what follows a node: an operator, a dot, a bracket."""
        end = self.character(node.end_col_offset or 0)
        blank = re.compile(r"[\s)]*").match(self.line, end)
        return blank.end() if blank else end

    def character(self, byte: int) -> int:  # ast counts in UTF-8, and all is one line
        return len(self.line.encode()[:byte].decode(errors="ignore"))

    def refuse(self, at: int, found: str, accepted: str) -> NoReturn:
        before = self.text[:at].splitlines() or [""]
        if self.text[:at].endswith("\n"):
            before.append("")
        lines = self.text.splitlines() or [""]
        place = len(before[-1])
        if len(self.text) > _LONGEST:  # the place alone, and what is around it
            start = max(0, place - _LONGEST // 2)
            line = lines[len(before) - 1]
            dots = "..." if start else ""
            rest = "..." if len(line) > start + _LONGEST else ""
            shown = [dots + line[start : start + _LONGEST] + rest, " " * (len(dots) + place - start) + "^"]
        else:
            shown = [*lines[: len(before)], " " * place + "^", *lines[len(before) :]]
        raise ValueError("\n    ".join([f"interop.elementwise: {found}; accepted: {accepted}", *shown])) from None

    # ---- the nodes ----

    def read(self, node: ast.expr) -> Name | Literal | _Applied:
        match node:
            case ast.Name():
                return self.name(node)
            case ast.Constant():
                return self.constant(node)
            case ast.BinOp():
                return self.binary(node)
            case ast.UnaryOp():
                return self.unary(node)
            case ast.Compare():
                return self.compare(node)
            case ast.Call():
                return self.call(node)
        return self.refuse_node(node)

    def name(self, node: ast.Name) -> Name:
        if node.id in FUNCTIONS:
            self.refuse(self.start(node), f"{node.id} is a function", f"a call of it, {_call_of(FUNCTIONS[node.id])}")
        if node.id in OPTIONS:
            self.refuse(self.start(node), f"{node.id} is an option of the call", "another name for a parameter")
        self.parameters.setdefault(node.id)
        if len(self.parameters) > _core.Expression.max_parameters:
            self.refuse(self.start(node), "one parameter too many", f"{_core.Expression.max_parameters} parameters")
        return Name(node.id)

    def constant(self, node: ast.Constant) -> Literal:
        if not isinstance(node.value, bool | int | float | complex):
            what = "None" if node.value is None else f"a {type(node.value).__name__}"
            self.refuse(self.start(node), f"{what} is no number", "int, float, complex and bool literals")
        return Literal(node.value)

    def binary(self, node: ast.BinOp) -> _Applied:
        if type(node.op) not in _BINARY:
            accepted = " ".join(_BINARY.values())
            self.refuse(self.after(node.left), "this operator has no meaning for elements", accepted)
        return _OF_SYMBOL[_BINARY[type(node.op)], 2], (node.left, node.right)

    def unary(self, node: ast.UnaryOp) -> _Applied:
        if type(node.op) not in _UNARY:
            self.refuse(self.start(node), "`not` asks an array for one truth", "logical_not(x)")
        return _OF_SYMBOL[_UNARY[type(node.op)], 1], (node.operand,)

    def compare(self, node: ast.Compare) -> _Applied:
        if len(node.ops) > 1:
            at = self.after(node.comparators[0])
            self.refuse(at, "a chained comparison", "one at a time, such as (a < x) & (x < b)")
        if type(node.ops[0]) not in _COMPARISONS:
            accepted = " ".join(_COMPARISONS.values())
            self.refuse(self.after(node.left), "this comparison has no meaning for elements", accepted)
        return _OF_SYMBOL[_COMPARISONS[type(node.ops[0])], 2], (node.left, node.comparators[0])

    def call(self, node: ast.Call) -> _Applied:
        if not isinstance(node.func, ast.Name):
            if isinstance(node.func, ast.Attribute):
                self.refuse_node(node.func)
            self.refuse(
                self.after(node.func), "a call of what is no function", "a function by its name, such as sqrt(x)"
            )
        operation = FUNCTIONS.get(node.func.id)
        if operation is None:
            self.refuse(self.start(node.func), f"no function is called {node.func.id}", " ".join(sorted(FUNCTIONS)))
        for keyword in node.keywords:
            self.refuse(self.start(keyword), "an argument by keyword", f"{_call_of(operation)}, by position")
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.refuse_node(argument)
        if len(node.args) != operation.arity:
            found = f"{operation.name} has {len(node.args)} argument{'s' * (len(node.args) != 1)} here"
            self.refuse(self.start(node.func), found, _call_of(operation))
        return operation, tuple(node.args)

    def refuse_node(self, node: ast.expr) -> NoReturn:
        if isinstance(node, ast.Attribute):
            self.refuse(self.after(node.value), "an attribute", "arrays by their names, and the functions")
        if isinstance(node, ast.Subscript):
            self.refuse(self.after(node.value), "a subscript", "whole arrays: pass x[...] as an argument")
        if isinstance(node, ast.BoolOp):
            word = "and" if isinstance(node.op, ast.And) else "or"
            at = self.after(node.values[0])
            self.refuse(at, f"`{word}` asks an array for one truth", f"logical_{word}(x, y), or {'&|'[word == 'or']}")
        if isinstance(node, ast.IfExp):
            self.refuse(self.after(node.body), "`if` asks an array for one truth", "where(condition, x, y)")
        found = _FOUND.get(type(node), f"{type(node).__name__}, which is no arithmetic")
        self.refuse(self.start(node), found, "names, numbers, operators, comparisons, and calls of the functions")


_FOUND: dict[type, str] = {
    ast.Tuple: "a tuple",
    ast.List: "a list",
    ast.Dict: "a dict",
    ast.Set: "a set",
    ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.JoinedStr: "a str",
    ast.NamedExpr: "an assignment",
    ast.Starred: "an argument with a star",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
}


def _call_of(operation: Operation) -> str:
    names = {1: "x", 2: "x, y", 3: "condition, x, y"}[operation.arity]
    return f"{operation.name}({names})"
