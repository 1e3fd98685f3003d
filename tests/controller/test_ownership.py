"""The stores of the controller's state are written by their own methods alone (`controller.state`)."""

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


def writes(source: str) -> Iterator[str]:
    """Yield the line number and the text of each write to a field of a store, or of an object that a store owns."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                places = targets
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
                places = [target]
            case ast.Call(func=ast.Attribute(value=changed, attr=name)) if name in MUTATORS:
                places = [changed]
            case _:
                continue
        for place in places:
            for part in place.elts if isinstance(place, ast.Tuple | ast.List) else [place]:
                if _is_of_store(names(part)):
                    yield f"{node.lineno}: {ast.unparse(node).splitlines()[0]}"


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
