"""Reads the text of an expression: Python's own syntax, by `ast`, and of that only what is listed here."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import NoReturn

from interop import _core
from interop._arguments import shown
from interop._expression_operations import BINARY, COMPARISONS, FUNCTIONS, UNARY, Operation

__all__ = ["Apply", "Literal", "Name", "Node", "parse"]

OPTIONS = ("out", "stream", "execution")  # of a call, so no parameter's name
_MOST_DEPTH = 200


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
    args: tuple[Node, ...]
    text: str = field(compare=False)  #: as it was written


Node = Name | Literal | Apply


def parse(text: str) -> tuple[Node, tuple[str, ...]]:
    """Return the expression, and its parameters in order of appearance.

    Raises TypeError if `text` is no str, and ValueError, which points at the character, for what is not accepted.
    """
    if not isinstance(text, str):
        raise TypeError(f"interop.elementwise: the expression is {shown(text)}; accepted: a str such as 'x * y + a'")
    return _Parser(text).run()


class _Parser:
    def __init__(self, text: str) -> None:
        # Python takes no blank before an expression; a line feed would end it.
        self.text = text.strip()
        self.parameters: dict[str, None] = {}

    def run(self) -> tuple[Node, tuple[str, ...]]:
        if not self.text:
            self.refuse(0, "the expression is empty", "one such as x * y + a")
        try:
            tree = ast.parse(self.text, mode="eval")
        except SyntaxError as error:
            at = self.place(error.lineno or 1, error.offset) if error.offset else len(self.text)
            self.refuse(at, f"not an expression of Python: {error.msg}", "one such as x * y + a")
        except (ValueError, RecursionError, MemoryError) as error:  # null characters; brackets nested too deeply
            self.refuse(0, f"not an expression of Python: {error}", "one such as x * y + a")
        node = self.visit(tree.body, 0)
        if not self.parameters:
            self.refuse(0, "there is no parameter", "an expression with at least one name, for an array")
        return node, tuple(self.parameters)

    # ---- where something is, and what to say of it ----

    def place(self, line: int, column: int) -> int:
        """Return the place in the text of a line and column, both from 1."""
        before = self.text.splitlines(keepends=True)[: line - 1]
        return min(sum(map(len, before)) + column - 1, len(self.text))

    def start(self, node: ast.expr | ast.keyword) -> int:
        return self._from_bytes(node.lineno, node.col_offset)

    def after(self, node: ast.expr) -> int:
        """Return the place of what follows a node: an operator, a dot, a bracket."""
        end = self._from_bytes(node.end_lineno or node.lineno, node.end_col_offset or 0)
        blank = re.compile(r"[\s)\\]*").match(self.text, end)
        return blank.end() if blank else end

    def _from_bytes(self, line: int, column: int) -> int:  # ast counts in UTF-8
        row = self.text.splitlines()[line - 1]
        return self.place(line, len(row.encode()[:column].decode(errors="ignore")) + 1)

    def refuse(self, at: int, found: str, accepted: str) -> NoReturn:
        before = self.text[:at].splitlines() or [""]
        if self.text[:at].endswith("\n"):
            before.append("")
        lines = self.text.splitlines() or [""]
        shown = [*lines[: len(before)], " " * len(before[-1]) + "^", *lines[len(before) :]]
        raise ValueError("\n    ".join([f"interop.elementwise: {found}; accepted: {accepted}", *shown])) from None

    # ---- the nodes ----

    def visit(self, node: ast.expr, depth: int) -> Node:
        if depth > _MOST_DEPTH:
            self.refuse(self.start(node), "nested too deeply here", f"{_MOST_DEPTH} operations within one another")
        match node:
            case ast.Name():
                return self.name(node)
            case ast.Constant():
                return self.constant(node)
            case ast.BinOp():
                return self.binary(node, depth)
            case ast.UnaryOp():
                return self.unary(node, depth)
            case ast.Compare():
                return self.compare(node, depth)
            case ast.Call():
                return self.call(node, depth)
        return self.refuse_node(node)

    def name(self, node: ast.Name) -> Node:
        if node.id in FUNCTIONS:
            self.refuse(self.start(node), f"{node.id} is a function", f"a call of it, {_call_of(FUNCTIONS[node.id])}")
        if node.id in OPTIONS:
            self.refuse(self.start(node), f"{node.id} is an option of the call", "another name for a parameter")
        self.parameters.setdefault(node.id)
        if len(self.parameters) > _core.max_parameters:
            self.refuse(self.start(node), "one parameter too many", f"{_core.max_parameters} parameters")
        return Name(node.id)

    def constant(self, node: ast.Constant) -> Node:
        if not isinstance(node.value, bool | int | float | complex):
            what = "None" if node.value is None else f"a {type(node.value).__name__}"
            self.refuse(self.start(node), f"{what} is no number", "int, float, complex and bool literals")
        return Literal(node.value)

    def binary(self, node: ast.BinOp, depth: int) -> Node:
        if type(node.op) not in BINARY:
            accepted = " ".join(symbol for symbol, _ in BINARY.values())
            self.refuse(self.after(node.left), "this operator has no meaning for elements", accepted)
        operation = BINARY[type(node.op)][1]
        return self.apply(operation, node, (node.left, node.right), depth)

    def unary(self, node: ast.UnaryOp, depth: int) -> Node:
        if type(node.op) not in UNARY:
            self.refuse(self.start(node), "`not` asks an array for one truth", "logical_not(x)")
        return self.apply(UNARY[type(node.op)][1], node, (node.operand,), depth)

    def compare(self, node: ast.Compare, depth: int) -> Node:
        if len(node.ops) > 1:
            at = self.after(node.comparators[0])
            self.refuse(at, "a chained comparison", "one at a time, such as (a < x) & (x < b)")
        if type(node.ops[0]) not in COMPARISONS:
            accepted = " ".join(symbol for symbol, _ in COMPARISONS.values())
            self.refuse(self.after(node.left), "this comparison has no meaning for elements", accepted)
        return self.apply(COMPARISONS[type(node.ops[0])][1], node, (node.left, node.comparators[0]), depth)

    def call(self, node: ast.Call, depth: int) -> Node:
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
        return self.apply(operation, node, tuple(node.args), depth)

    def apply(self, operation: Operation, node: ast.expr, args: tuple[ast.expr, ...], depth: int) -> Node:
        text = ast.get_source_segment(self.text, node) or self.text
        return Apply(operation, tuple(self.visit(x, depth + 1) for x in args), text)

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
