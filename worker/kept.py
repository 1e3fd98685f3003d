"""Values that a script keeps, as seen by one worker: names, digests and a few words; and differences of two workers
(`reachable`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ..protocol.errors import PeerError

CACHE = "_lru_cache_wrapper"  # type of a function under `functools.lru_cache`
MOST_NAMES = 8  # other names of one value that count
NAMED_DEPTH = 6  # depth up to which parts of a value have names


class Kind(enum.StrEnum):
    """Kind of a value, as far as it matters for the remedy; the likeliest causes of a difference come first."""

    PLAIN = "plain"
    CONTAINER = "container"
    TENSOR = "tensor"
    ARRAY = "array"
    GENERATOR = "generator"  # a random generator
    ITERATOR = "iterator"
    MODULE = "module"
    MODEL = "model"  # a module of which the job carries parameters and buffers
    OBJECT = "object"
    DATA = "data"  # a dataset, or an object that reads one
    LIBRARY = "library"  # an object of a library, compared as a whole
    UNSEEN = "unseen"  # an object that cannot be read
    OTHER = "other"


class Node(NamedTuple):
    """A value in a look, which makes thousands of them."""

    digest: int | None  # 63 bits; None: the value was not read completely
    kind: Kind
    type: str  # name of its class; of a function: `function_type`
    shown: str = ""
    shape: tuple[int, ...] | None = None  # of a tensor or array; of the first item of a short list
    again: bool = False  # the value has another name, too, which precedes this one
    changed: bool = True  # whether the value may have changed since the loop began
    parts: Mapping[str, Node] = MappingProxyType({})  # by the suffix to the name

    def plain(self) -> list[Any]:
        shape = None if self.shape is None else list(self.shape)
        parts = {name: part.plain() for name, part in self.parts.items()}
        return [self.digest, self.kind.value, self.type, self.shown, shape, self.again, self.changed, parts]

    @staticmethod
    def of(plain: Any, depth: int = 0) -> Node:
        """Return the Node of `plain` values. Raises ValueError and TypeError for malformed ones."""
        digest, kind, type_, shown, shape, again, changed, parts = plain
        if depth > NAMED_DEPTH or not (digest is None or isinstance(digest, int)):
            raise ValueError("a digest is an integer, and names are short")
        return Node(
            digest,
            Kind(kind),
            str(type_),
            str(shown),
            None if shape is None else tuple(int(size) for size in shape),
            bool(again),
            bool(changed),
            {str(name): Node.of(part, depth + 1) for name, part in parts.items()},
        )

    def since(self, begun: Node | None) -> Node:
        changed = begun is None or self.digest is None or self.digest != begun.digest
        before = begun.parts if begun is not None else {}
        parts = {name: part.since(before.get(name)) for name, part in self.parts.items()}
        return self._replace(changed=changed, parts=parts)

    @property
    def is_class(self) -> bool:
        return self.shown == f"the class {self.type}"

    def every(self) -> Iterator[Node]:
        """Yield the node and all of its parts."""
        yield self
        for part in self.parts.values():
            yield from part.every()


@dataclass(frozen=True)
class Reach:
    """Values that one worker's script keeps, at one moment."""

    names: Mapping[str, Node]
    opaque: tuple[str, ...] = ()  # names of values that cannot be read
    cut: str | None = None  # the limit that has cut values off; None: none has
    # Second paths to objects that may change in place, each with the first one; None: too deep for a name. Not in `plain`.
    shared: tuple[tuple[str | None, str | None], ...] = field(default=(), compare=False)

    def plain(self) -> list[Any]:
        """Return plain values for MessagePack, at most some hundred kB with the default limits, in the order of the
        look.
        """
        return [{name: node.plain() for name, node in self.names.items()}, list(self.opaque), self.cut]

    @staticmethod
    def of(plain: Any) -> Reach:
        """Return the Reach of `plain` values. Raises PeerError for malformed ones."""
        try:
            names, opaque, cut = plain
            nodes = {str(name): Node.of(node) for name, node in names.items()}
            return Reach(nodes, tuple(map(str, opaque)), None if cut is None else str(cut))
        except (ValueError, TypeError, AttributeError) as error:
            raise PeerError(f"these are no digests of a script's values: {error}") from None

    def every(self) -> Iterator[Difference]:
        """Yield each name and each part of it, as a difference of the value from itself."""

        def inside(name: str, node: Node, owners: tuple[str, ...], holders: tuple[Kind, ...]) -> Iterator[Difference]:
            yield Difference(name, node, node, owners, holders)
            for label, part in node.parts.items():
                yield from inside(name + label, part, (*owners, node.type), (*holders, node.kind))

        for name, node in self.names.items():
            yield from inside(name, node, (), ())

    def since(self, begun: Reach) -> Reach:
        """Return a copy with `changed` False for values equal to those in `begun`, an earlier look of the same process."""
        return replace(self, names={name: node.since(begun.names.get(name)) for name, node in self.names.items()})

    def without(self, names: Callable[[str], bool]) -> Reach:
        """Return a copy without the names and parts for which `names` is true (`local_names`)."""

        def kept(name: str, node: Node) -> Node:
            parts = {each: kept(name + each, part) for each, part in node.parts.items() if not names(name + each)}
            whole = len(parts) == len(node.parts) and all(parts[each] is node.parts[each] for each in parts)
            return node if whole else node._replace(digest=None, parts=parts)

        return replace(self, names={name: kept(name, node) for name, node in self.names.items() if not names(name)})


def function_type(qualified_name: str) -> str:
    """Return the type of a function's node: `train.<locals>.step()`."""
    return f"{qualified_name}()"


def is_function_type(type_: str) -> bool:
    return type_.endswith("()")


def path_of_function(type_: str) -> tuple[str, ...]:
    """Return the names of the functions and classes around a function, the outermost first, and its own."""
    return tuple(name for name in type_.removesuffix("()").split(".") if name != "<locals>")


def variable_of(name: str) -> str:
    """Return the variable or attribute of which a name is a part: `trainer.losses` for `trainer.losses['train'][0]`."""
    return re.split(r"[\[(]", name, maxsplit=1)[0]


def last_name(name: str) -> str:
    """Return the name of a variable, or that of an attribute with a dot before it: `.total` for `1 train meter.total`."""
    name = variable_of(name.rpartition(" ")[2])
    return name if "." not in name else f".{name.rpartition('.')[2]}"


def root_of(name: str) -> str:
    """Return the variable of which a name is a part."""
    return re.split(r"[.\[(]", name, maxsplit=1)[0]


class Difference(NamedTuple):
    """A name under which the scripts of two workers keep different values."""

    name: str
    ones: Node | None  # None: that worker has no such attribute or key
    others: Node | None
    owners: tuple[str, ...] = ()  # the classes of the objects that contain the value, the outermost first
    holders: tuple[Kind, ...] = ()
    also: tuple[Difference, ...] = ()  # the same value by its other names

    @property
    def by_each_name(self) -> tuple[Difference, ...]:
        """The difference under each name of the value."""
        return (self, *self.also)

    @property
    def node(self) -> Node:
        """The node that describes the value better."""
        first, second = self.ones, self.others
        if first is None or (second is not None and first.type == "NoneType"):
            assert second is not None
            return second
        return first

    @property
    def whole(self) -> str:
        """The name, of an item of a list that of the list: `losses` for `losses[5]`."""
        return re.sub(r"(\[\d+\])+$", "", self.name)

    @property
    def in_data(self) -> bool:
        """Whether a dataset contains the value."""
        return Kind.DATA in self.holders

    @property
    def in_module(self) -> bool:
        """Whether a module contains the value directly."""
        return self.holders[-1:] == (Kind.MODULE,)

    @property
    def in_model(self) -> bool:
        """Whether the value is an attribute of a module of which the job carries parameters and buffers."""
        return self.holders[-1:] == (Kind.MODEL,)

    @property
    def changed(self) -> bool:
        """Whether one of the two loops has changed the value. If not, the scripts differed from their beginning.

        False for caches of functions: their entries differ where each process has made other calls, which matters only
        if an entry does not follow from its arguments.
        """
        return self.node.type != CACHE and any(node is not None and node.changed for node in (self.ones, self.others))


def differences(ones: Reach, others: Reach) -> list[Difference]:
    """Return the names that both looks have, read completely, with different digests; the likeliest causes first.

    Values that a loop has changed come first, and among these numbers, then containers, then tensors.
    """
    found: list[Difference] = []
    pairs: list[_Pair] = []
    for name, node in ones.names.items():
        other = others.names.get(name)
        if other is not None:
            found += _between(name, node, other, (), ())[0]
            pairs += _pairs(_Pair(name, node, other))
    found = _with_other_names(found, pairs)
    order = list(Kind)
    found.sort(key=lambda each: (not each.changed, order.index(each.node.kind), each.name.count("."), each.name))
    return _without_closures_of_variables(found)


def _without_closures_of_variables(found: Sequence[Difference]) -> list[Difference]:
    """Return the differences, where a function's variable that inner functions have, too, is one with several names.

    Such a variable has no identity: its plain values are equal in both looks.
    """
    kept: dict[tuple[Any, ...], Difference] = {}
    for each in found:
        variable = each.name.rpartition(".")[2]
        functions = [path_of_function(owner) for owner in each.owners[-1:] if is_function_type(owner)]
        is_variable = bool(functions) or not each.owners
        outermost = functions[0][0] if functions else ""
        same: list[Any] = [variable, _digest(each.ones), _digest(each.others)]
        keys = [(*same, outermost), (*same, "")] if is_variable else [(each.name,)]
        first = next((key for key in keys if key in kept), None)
        if first is None:
            kept[keys[0]] = each
        else:
            kept[first] = kept[first]._replace(also=(*kept[first].also, each)[:MOST_NAMES])
    return list(kept.values())


class _Pair(NamedTuple):
    """The values of one name in two looks."""

    name: str
    one: Node
    other: Node
    owners: tuple[str, ...] = ()
    holders: tuple[Kind, ...] = ()

    @property
    def digests(self) -> tuple[int | None, int | None]:
        return self.one.digest, self.other.digest


def _pairs(pair: _Pair) -> Iterator[_Pair]:
    """Yield this pair and those of its parts that differ and were read completely."""
    name, one, other, owners, holders = pair
    if one.digest == other.digest:
        return
    if None not in pair.digests:
        yield pair
    if one.type == other.type:
        for part, node in one.parts.items():
            if part in other.parts:
                inside = (*owners, one.type), (*holders, one.kind)
                yield from _pairs(_Pair(name + part, node, other.parts[part], *inside))


def _with_other_names(found: Sequence[Difference], pairs: Sequence[_Pair]) -> list[Difference]:
    """Return the differences with the other names of each value: of itself, or of an object that contains it."""
    again: dict[tuple[int | None, int | None], list[_Pair]] = {}
    first: dict[str, _Pair] = {}
    for pair in pairs:
        if pair.one.again and pair.other.again:
            again.setdefault(pair.digests, []).append(pair)
        else:
            first.setdefault(pair.name, pair)
    if not again:
        return list(found)
    named: list[Difference] = []
    for each in found:
        also = []
        for end in [place.start() for place in re.finditer(r"[.\[(]", each.name)] + [len(each.name)]:
            whole = first.get(each.name[:end])
            for other in again.get(whole.digests, ()) if whole is not None else ():
                depth, rest = len(whole.owners) if whole is not None else 0, each.name[end:]
                owners, holders = other.owners + each.owners[depth:], other.holders + each.holders[depth:]
                also.append(Difference(other.name + rest, each.ones, each.others, owners, holders))
        named.append(each._replace(also=tuple(also[:MOST_NAMES])))
    return named


def _added_to_tensor(difference: Difference) -> Iterator[Difference]:
    """Yield the attributes that a script has given to a parameter on one side alone."""
    name, one, _other, owners, holders, _ = difference
    node = difference.node
    for part, inner in node.parts.items() if node.kind is Kind.OBJECT and node.type in ("Parameter", "Tensor") else ():
        mine, theirs = (None, inner) if one is None else (inner, None)
        yield Difference(name + part, mine, theirs, (*owners, node.type), (*holders, node.kind))


def _digest(node: Node | None) -> int | None:
    return None if node is None else node.digest


def _between(
    name: str, one: Node, other: Node, owners: tuple[str, ...], holders: tuple[Kind, ...]
) -> tuple[list[Difference], bool]:
    """Return the most specific differences of two values of one name, and whether there are any, here or under another
    name.
    """
    differ = one.digest is not None and other.digest is not None and one.digest != other.digest
    differ |= one.type != other.type and "NoneType" in (one.type, other.type)  # whether the other one was read or not
    if one.again and other.again:
        return [], differ
    if one.digest is not None and one.digest == other.digest:
        return [], False
    if one.again is not other.again:  # read by another name on one side, where its parts are
        return ([Difference(name, one, other, owners, holders)] if differ else []), differ
    parts = list({**one.parts, **other.parts})
    inner: list[Difference] = []
    count = 0  # number of parts that differ
    elsewhere = False
    inside = (*owners, one.type), (*holders, one.kind)
    if one.type == other.type:
        for part in parts:
            mine, theirs = one.parts.get(part), other.parts.get(part)
            if mine is None or theirs is None:
                if differ and (one.kind in (Kind.OBJECT, Kind.MODEL) or (one.parts and other.parts)):
                    found = [Difference(name + part, mine, theirs, *inside)]
                    inner += list(_added_to_tensor(found[0])) or found
                    count += 1
                continue
            found, any_ = _between(name + part, mine, theirs, *inside)
            inner += found
            count += any_
            elsewhere |= any_ and not found
    if one.kind in (Kind.OBJECT, Kind.MODEL, Kind.DATA) and count:
        return inner, True
    if differ and not (count == 1 and (inner or elsewhere)):
        return [Difference(name, one, other, owners, holders)], True
    return inner, count > 0
