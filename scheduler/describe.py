"""Descriptions of policies, admissions, packings and placements with their parameters, taken from their classes.

The rule is the first paragraph of the class's docstring. The meaning of a parameter is in the docstring of the struct
of parameters, after its name: "`slice_s`: how long ...", up to the next name or the end of the paragraph.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec

from .placement.registry import PLACEMENTS
from .plugin import LoadedPlugin
from .policies import POLICIES
from .scheduler import ADMISSIONS, PACKINGS

_NAME = re.compile(r"`(\w+)`: ")


class ParameterView(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter as it is shown."""

    name: str
    type: str  # in words: "number (more than 0)"
    default: Any
    meaning: str


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy or a stage as it is shown."""

    kind: str  # "policy", "admission", "packing", "placement"
    name: str
    rule: str
    needs_lengths: bool = False  # whether it must know how long jobs take
    parameters: tuple[ParameterView, ...] = ()


def rules() -> tuple[RuleView, ...]:
    """Return all rules that can be chosen: policies first."""
    return (
        *(_view("policy", kind, _needs_lengths(kind)) for kind in POLICIES),
        *(_view("admission", kind) for kind in ADMISSIONS),
        *(RuleView(kind="packing", name=name, rule=rule) for name, rule in PACKINGS.items()),
        *(_view("placement", kind) for kind in PLACEMENTS),
    )


def _needs_lengths(kind: Any) -> bool:
    """Return whether the policy needs lengths with default parameters."""
    return bool(kind(kind.Parameters()).needs_lengths)


def rule_of(policy: object) -> str:
    """Return the rule of a policy: the first sentence of its class's docstring; "" if there is none."""
    kind = type(policy.plugin if isinstance(policy, LoadedPlugin) else policy)
    return re.split(r"(?<=\.)\s", _paragraphs(kind)[0], maxsplit=1)[0].rstrip(".")


def _view(what: str, kind: Any, needs_lengths: bool = False) -> RuleView:
    rule = _paragraphs(kind)[0]
    return RuleView(
        kind=what, name=kind.name, rule=rule, needs_lengths=needs_lengths, parameters=_parameters(kind.Parameters)
    )


def _parameters(struct: type[msgspec.Struct]) -> tuple[ParameterView, ...]:
    known = msgspec.inspect.type_info(struct)
    assert isinstance(known, msgspec.inspect.StructType)
    defaults = msgspec.to_builtins(struct())
    meanings: dict[str, str] = {}
    for one in reversed(struct.__mro__):
        for paragraph in _paragraphs(one) if issubclass(one, msgspec.Struct) else ():
            _, *found = _NAME.split(paragraph)
            meanings.update(zip(found[::2], map(str.strip, found[1::2]), strict=True))
    return tuple(
        ParameterView(
            name=field.name,
            type=_type(field.type),
            default=defaults[field.name],
            meaning=meanings.get(field.name, ""),
        )
        for field in known.fields
        if field.name in defaults  # without those of earlier versions, which are accepted and ignored
    )


def _paragraphs(kind: type) -> list[str]:
    """Return the paragraphs of a class's own docstring, each on one line; at least one."""
    return [" ".join(part.split()) for part in inspect.cleandoc(kind.__doc__ or "").split("\n\n")]


def _type(kind: msgspec.inspect.Type) -> str:
    """Return a type in words, with the allowed values."""
    match kind:
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            name = "whole number" if isinstance(kind, msgspec.inspect.IntType) else "number"
            bounds = ", ".join(_bounds(kind))
            return f"{name} ({bounds})" if bounds else name
        case msgspec.inspect.StrType():
            return "text"
        case msgspec.inspect.NoneType():
            return "null"
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(map(str, values))
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_type(one) for one in types)
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return f"list of {_type(item).replace('number', 'numbers')}"
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def _bounds(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> list[str]:
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    return [f"{word} {bound:g}" for name, word in words.items() if (bound := getattr(kind, name)) is not None]
