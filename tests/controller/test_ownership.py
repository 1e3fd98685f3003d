"""Objects of the controller are written by their own methods alone: its stores (`controller.state`), and all entities.

The first half of this module knows the stores and what they own by the names of variables. The second half knows every
mutable class of the controller, such as `Job`, by the names of its attributes, whatever a variable is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CONTROLLER = Path(__file__).parents[2] / "controller"
OWNERS = {CONTROLLER / "cluster.py", CONTROLLER / "sessions.py", *(CONTROLLER / "state").glob("*.py")}
OTHERS = sorted(set(CONTROLLER.rglob("*.py")) - OWNERS)
STORES = {"servers", "jobs", "planning", "history", "clients", "experience", "notices", "snapshots"}
CLUSTERS = {"cluster", "_cluster", "copied"}  # names of variables with a `Cluster`
OWNED = {
    "session",
    "foreign",
    "health",
}  # names of variables with an object of `sessions`, which the servers' store owns
MUTATORS = {
    name
    for kind in (list, dict, set)
    for name in dir(kind)
    if not name.startswith("_") and not hasattr(frozenset if kind is set else tuple, name)
} - {"copy", "keys", "values", "items", "get", "fromkeys"} | {"appendleft", "popleft", "move_to_end"}


def changes(source: str) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield each write of a module: its line number and text, the changed expression, and whether a container changes."""
    for node in ast.walk(ast.parse(source)):
        in_place = False
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                places = targets
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
                places = [target]
            case ast.Call(func=ast.Attribute(value=changed, attr=name)) if name in MUTATORS:
                places, in_place = [changed], True
            case _:
                continue
        for place in places:
            for part in place.elts if isinstance(place, ast.Tuple | ast.List) else [place]:
                text = f"{node.lineno}: {ast.unparse(node).splitlines()[0]}"
                yield text, part, in_place or isinstance(part, ast.Subscript)


def writes(source: str) -> Iterator[str]:
    """Yield the line number and the text of each write to a field of a store, or of an object that a store owns."""
    for text, part, _ in changes(source):
        if _is_of_store(names(part)):
            yield text


def names(node: ast.expr) -> list[str]:
    """Return the names from which an attribute, or a part of one, is reached: `a.b[0].c` gives a, b, c."""
    match node:
        case ast.Attribute(value=value, attr=name):
            return [*names(value), name]
        case ast.Subscript(value=value) | ast.Call(func=value):
            return names(value)
        case ast.Name(id=name):
            return [name]
    return []


def _is_of_store(found: list[str]) -> bool:
    if found[:1] == ["self"]:
        found = found[1:]
    match found:
        case [cluster, store, _, *_] if cluster in CLUSTERS and store in STORES:
            return True
        case [cluster, _] if cluster in CLUSTERS:
            return found[1] not in STORES
        case [name, _, *_]:
            return name in OWNED
    return False


@pytest.mark.parametrize("module", OTHERS, ids=lambda module: module.relative_to(CONTROLLER).as_posix())
def test_no_other_module_writes_to_a_store(module: Path) -> None:
    assert list(writes(module.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "cluster.planning.review_s = 1.0",
        "cluster.planning.review_s += 1.0",
        "self._cluster.settings = settings",
        "cluster.servers.met[server] = {}",
        "del cluster.servers.met[server]",
        "seen, cluster.servers.overruled[server] = found",
        "cluster.servers.awaited.discard(server)",
        "cluster.servers.refused.popitem(last=False)",
        "cluster.servers.forged.setdefault(server, found)",
        "session.alive = False",
        "foreign.running.pop(worker, None)",
        "health.doubts[job] = doubt",
    ],
)
def test_a_write_is_found(line: str) -> None:
    assert list(writes(line)) == [f"1: {line}"]


@pytest.mark.parametrize(
    "line",
    [
        "cluster.planning.request()",
        "cluster.servers.clear(server)",
        "cluster.history.add(now, kind, None, text)",
        "before = cluster.servers.sessions.get(server)",
        "cluster.jobs[name].update(target=())",
        "self._cluster = cluster",
        "session.unknown_ended(worker)",
    ],
)
def test_a_call_of_a_method_is_no_write(line: str) -> None:
    assert list(writes(line)) == []


# ---------------------------------------------------------------------------------------------------------- entities

CONTAINERS = {"dict", "list", "set", "OrderedDict", "deque", "Counter", "defaultdict", "Statuses"}


def attributes(source: str) -> Iterator[tuple[str, bool]]:
    """Yield the attributes of each mutable class in a module, and whether each is a container by one of its definitions."""
    for found in ast.walk(ast.parse(source)):
        if not isinstance(found, ast.ClassDef) or "frozen=True" in "".join(
            ast.unparse(part) for part in (*found.decorator_list, *found.keywords)
        ):
            continue
        known: dict[str, bool] = {}
        for node in ast.walk(found):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    match part:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name):
                            known[name] = known.get(name, False) or _is_container(node)
                        case ast.Name(id=name) if isinstance(node, ast.AnnAssign) and node in found.body:
                            known[name] = known.get(name, False) or _is_container(node)
        yield from known.items()


def _is_container(node: ast.Assign | ast.AnnAssign) -> bool:
    kind: ast.expr | None = node.annotation if isinstance(node, ast.AnnAssign) else node.value
    while isinstance(kind, ast.Subscript | ast.Call):
        kind = kind.value if isinstance(kind, ast.Subscript) else kind.func
    literal = isinstance(kind, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
    return literal or (isinstance(kind, ast.Name) and kind.id in CONTAINERS)


def foreign_writes(source: str, defined: dict[str, bool]) -> Iterator[str]:
    """Yield the writes of a module to attributes in `defined` of other objects than `self`.

    `defined`: attributes of mutable classes, and whether each is a container, which a call or a new item changes in place.
    A module may write to attributes of its own classes.
    """
    own = {name for name, _ in attributes(source)}
    for text, part, in_place in changes(source):
        changed = part
        while isinstance(changed, ast.Subscript):
            changed = changed.value
        if not isinstance(changed, ast.Attribute) or names(changed) == ["self", changed.attr]:
            continue
        if changed.attr in defined and changed.attr not in own and (defined[changed.attr] or not in_place):
            yield text


def _defined() -> dict[str, bool]:
    found: dict[str, bool] = {}
    for module in sorted(CONTROLLER.rglob("*.py")):
        for name, container in attributes(module.read_text()):
            found[name] = found.get(name, True) and container
    return found


DEFINED = _defined()


def test_the_attributes_of_a_job_are_known() -> None:
    assert {"record", "planned", "room", "unproven", "saving", "until_s", "last_heard_s"} <= DEFINED.keys()
    assert DEFINED["statuses"]
    assert not DEFINED["record"]


@pytest.mark.parametrize(
    "module", sorted(CONTROLLER.rglob("*.py")), ids=lambda each: each.relative_to(CONTROLLER).as_posix()
)
def test_no_other_module_writes_to_an_entity(module: Path) -> None:
    assert list(foreign_writes(module.read_text(), DEFINED)) == []


@pytest.mark.parametrize(
    "line",
    [
        "job.planned = planned",
        "each.start_failures += 1",
        "del job.silent[worker]",
        "job.leaving_since.pop(worker, None)",
        "other.statuses[worker] = status",
        "job.saving.until_s = None",
        "saving.dismissed[worker] = 1",
        "first, job.reported.newest = found",
        "self._job.record = record",
        "session.last_heard_s = now",
    ],
)
def test_a_write_to_an_entity_is_found(line: str) -> None:
    assert list(foreign_writes(line, DEFINED)) == [f"1: {line}"]


@pytest.mark.parametrize(
    "line", ["job.update(target=())", "self.record = record", "job.put_status(status)", "found = job.room"]
)
def test_a_method_or_an_own_attribute_is_no_foreign_write(line: str) -> None:
    assert list(foreign_writes(line, DEFINED)) == []
