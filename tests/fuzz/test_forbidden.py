"""Ways from bytes to code (pickle, eval, ...) that daemons must not contain. The test searches the source for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "controller", "ctl", "protocol", "runtime", "scheduler", "simulator", "worker")
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]

LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    "yaml": {"load", "load_all", "full_load", "unsafe_load"},
    "os": {"system", "popen"},
    "numpy": {"load"},
    "np": {"load"},
}
ZMQ_PICKLES = {"recv_pyobj", "send_pyobj", "recv_serialized"}
OF_TORCH = {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list"}
# A worker's forked process executes the user's script as the user: that is its purpose.
ALLOWED = {("agent/forkserver/child.py", "exec"), ("agent/forkserver/child.py", "compile")}
# A policy's Python file comes from a simulation's user or the operator's configuration; requests that name one are refused.
ALLOWED |= {("scheduler/plugin.py", "exec"), ("scheduler/plugin.py", "compile")}


def found(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = node.func
        options = {each.arg: each.value for each in node.keywords}
        if isinstance(call, ast.Name) and call.id in CALLS:
            yield call.id
        if isinstance(call, ast.Attribute):
            of = call.value.id if isinstance(call.value, ast.Name) else ""
            if of in LOADERS and call.attr in ("load", "loads", "Unpickler", "open"):
                yield f"{of}.{call.attr}"
            if call.attr in METHODS.get(of, ()) or call.attr in ZMQ_PICKLES | OF_TORCH:
                yield f"{of}.{call.attr}"
            weights = options.get("weights_only")
            if (of, call.attr) == ("torch", "load") and not (
                isinstance(weights, ast.Constant) and weights.value is True
            ):
                yield "torch.load without weights_only"
        shell = options.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield "shell="


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_comes_from_elsewhere_is_executed(module: Path) -> None:
    name = str(module.relative_to(ROOT))
    assert [what for what in found(ast.parse(module.read_text())) if (name, what) not in ALLOWED] == []


@pytest.mark.parametrize(
    "line",
    [
        "pickle.loads(data)",
        "yaml.load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "socket.recv_pyobj()",
        "eval(text)",
        "subprocess.run(command, shell=True)",
        "dist.broadcast_object_list(objects)",
    ],
)
def test_the_search_finds_what_it_searches_for(line: str) -> None:
    assert list(found(ast.parse(line)))
