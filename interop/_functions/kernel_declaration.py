"""The parameters of a kernel, from its declaration in CUDA C++."""

from __future__ import annotations

import re
from typing import NamedTuple

from interop._functions.c_types import ELEMENTS, Names, without_std
from interop._functions.declarations import declared_of, without_comments
from interop._functions.mdspans import mdspan_of
from interop._functions.parameters import Parameter, Refuse, array_of, number_of, split_at_commas

__all__ = ["ARRAYS", "NAME", "parameters_of"]

#: The kinds of parameters that take arrays.
ARRAYS = ("pointer", "view", "mdspan", "tensor_map")

#: A kernel's name: with namespaces, and the arguments of a template.
NAME = re.compile(r"(?:::)?(?:[A-Za-z_]\w*::)*(?P<base>[A-Za-z_]\w*)\s*(?:<(?P<arguments>.*)>)?", re.DOTALL)

_IN_PARENTHESES = r"\((?:[^()]|\([^()]*\))*\)"
_KERNEL = re.compile(
    rf"\b__global__\b(?:[^;{{}}()]|{_IN_PARENTHESES})*?\b(?P<name>[A-Za-z_]\w*)\s*"
    r"\((?P<parameters>(?:[^(){};]|\([^()]*\))*)\)\s*(?P<end>[;{])"
)
_TEMPLATE = re.compile(
    rf'\btemplate\s*<(?P<parameters>(?:[^<>]|<[^<>]*>)*)>(?:[\w\s"]|{_IN_PARENTHESES})*$'  # __launch_bounds__(256)
)
_TEMPLATE_PARAMETER = re.compile(r"(?:typename|class|[A-Za-z_][\w:]*(?:\s+[A-Za-z_]\w*)*?)\s+(?P<name>[A-Za-z_]\w*)")
_VIEW = re.compile(
    r"(?:const )?(?:::)?(?:interop::)?View ?< ?(?P<element>[^<>,]+?) ?, ?(?P<ndim>\d+) ?>(?: const)? "
    r"(?P<name>[A-Za-z_]\w*)"
)
_TENSOR_MAP = re.compile(r"(?:const )?(?:::)?CUtensorMap(?:_st)?(?: const)? (?P<name>[A-Za-z_]\w*)")
_MOST_DIMENSIONS = 64  # of an array
_NO_NAMES = Names()  # of types that the source defines


class _Found(NamedTuple):
    """A kernel of a source: its parameters, and those of its template."""

    parameters: str
    template: str | None
    is_definition: bool


def parameters_of(source: str, name: str, signature: str | None, refuse: Refuse) -> tuple[str, list[Parameter]]:
    """Return the parameters of the kernel `name`, as text and parsed.

    They stand in `source`, or in `signature` if that is given. What is not understood is what `refuse` makes of it.
    """
    text = _declared(without_comments(source), name, refuse) if signature is None else without_comments(signature)
    text = " ".join(text.split())
    parts = [] if text in ("", "void") else split_at_commas(text)

    def refuse_in(what: str) -> ValueError:
        return refuse(f"{what}, in {text!r}; or say signature='type name, ...', of these types and pointers alone")

    parameters = [_parameter(part, refuse_in) for part in parts]
    names = [parameter.name for parameter in parameters]
    for parameter in names:
        if names.count(parameter) > 1:
            raise refuse_in(f"two parameters are called {parameter!r}")
    if all(parameter.kind == "scalar" for parameter in parameters):
        raise refuse_in("there is no pointer and no view, whose array would say where to launch")
    return text, parameters


def _declared(source: str, name: str, refuse: Refuse) -> str:
    """Return the parameters of the kernel in the source, with the arguments of its template in their places."""
    found = NAME.fullmatch(name)
    assert found is not None  # which the caller has checked
    kernels: dict[str, list[_Found]] = {}
    for match in _KERNEL.finditer(source):
        template = _TEMPLATE.search(source[: match.start()])
        kernel = _Found(match["parameters"], template and template["parameters"], match["end"] == "{")
        kernels.setdefault(match["name"], []).append(kernel)
    candidates = kernels.get(found["base"], [])
    candidates = [kernel for kernel in candidates if kernel.is_definition] or candidates
    if not candidates:
        raise refuse(
            f"the source declares no __global__ function {found['base']!r}; accepted: "
            f"{', '.join(kernels) or 'one that it declares'}, or signature= for what a macro or a header declares"
        )
    if len(candidates) > 1:
        raise refuse(
            f"the source declares {found['base']!r} {len(candidates)} times; accepted: signature= to say which"
        )
    (kernel,) = candidates
    if kernel.template is None:
        if found["arguments"] is not None:
            raise refuse(f"{found['base']!r} is no template; accepted: its name alone")
        return kernel.parameters
    if found["arguments"] is None:
        raise refuse(f"{found['base']!r} is a template; accepted: its arguments, too, as in '{found['base']}<float>'")
    return _substituted(kernel.parameters, kernel.template, found["arguments"], refuse)


def _substituted(parameters: str, template: str, arguments: str, refuse: Refuse) -> str:
    values: dict[str, str] = {}
    given = split_at_commas(arguments)
    for place, part in enumerate(split_at_commas(template)):
        declared, _, default = (x.strip() for x in part.partition("="))
        found = _TEMPLATE_PARAMETER.fullmatch(declared)
        value = given[place] if place < len(given) else default
        if found is None or not value:
            raise refuse(
                f"the template <{' '.join(template.split())}> with <{arguments}> is not understood; "
                "accepted: signature='type name, ...', of the parameters as they are then"
            )
        values[found["name"]] = value
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda word: values.get(word[0], word[0]), parameters)


def _parameter(text: str, refuse: Refuse) -> Parameter:
    plain = _plain(text)
    text = " ".join(re.sub(r"\b__grid_constant__\b", "", plain).split())
    if found_map := _TENSOR_MAP.fullmatch(text):
        if "__grid_constant__" not in plain or "const" not in text.split():
            raise refuse(
                f"{found_map['name']!r} is a CUtensorMap that has no address where TMA can read it; accepted: "
                f"const __grid_constant__ CUtensorMap {found_map['name']}"
            )
        return Parameter("tensor_map", found_map["name"], "", False)
    if mdspan := mdspan_of(text, refuse):
        return mdspan
    if view := _VIEW.fullmatch(text):
        words, ndim = view["element"].split(), int(view["ndim"])
        type_name = " ".join(word for word in words if word != "const")
        if not ELEMENTS.get(type_name) or not 1 <= ndim <= _MOST_DIMENSIONS:
            raise refuse(
                f"{view['name']!r} is a view of {type_name} in {ndim} dimensions; accepted: "
                f"{_accepted()}, in 1 to {_MOST_DIMENSIONS}"
            )
        return Parameter("view", view["name"], ELEMENTS[type_name], "const" not in words, ndim)
    declared = declared_of(text, refuse)
    found = _NO_NAMES.resolve(declared.type)
    if found.stars:
        return array_of("pointer", declared, found, refuse)
    return number_of(declared, found, ELEMENTS, _OTHERS, refuse)


def _plain(text: str) -> str:
    """Spell the types of namespaces without them: integers, and complex numbers."""
    text = without_std(text)
    for element, name in (("float", "cuComplex"), ("double", "cuDoubleComplex")):
        text = re.sub(rf"(?:::)?\b(?:thrust::|cuda::std::|std::)?complex ?< ?{element} ?>", name, text)
    return text


_OTHERS = "pointers, interop::View, cuda::std::mdspan, const __grid_constant__ CUtensorMap"


def _accepted() -> str:
    return ", ".join(name for name, dtype in ELEMENTS.items() if dtype)
