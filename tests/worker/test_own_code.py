"""Which code is the script's own."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from elasticd.protocol import errors
from elasticd.worker import kept
from elasticd.worker.source import own_code
from elasticd.worker.source.own_code import is_own_file, own_modules


def imported(monkeypatch: pytest.MonkeyPatch, directory: Path, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = str(directory / f"{name}.py")
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_module_that_is_imported_again_replaced_or_removed_between_two_looks_is_seen_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = (f"{tmp_path}/",)
    assert own_modules(directories, {}) == {}
    first = imported(monkeypatch, tmp_path, "helpers")
    assert own_modules(directories, {})["helpers"] is vars(first)
    assert own_modules(directories, vars(first)) == {}
    second = imported(monkeypatch, tmp_path, "helpers")
    assert own_modules(directories, {})["helpers"] is vars(second)
    imported(monkeypatch, tmp_path, "another")
    assert list(own_modules(directories, {})) == ["another", "helpers"]
    assert list(own_modules((f"{tmp_path}/below/",), {})) == []
    monkeypatch.setitem(sys.modules, "helpers", "no module")
    assert list(own_modules(directories, {})) == ["another"]
    monkeypatch.delitem(sys.modules, "another")
    assert own_modules(directories, {}) == {}


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/job/train.py", True),
        ("/job/./below/../train.py", True),
        ("/job//train.py", True),
        ("/job/../train.py", False),
        ("/job/.hidden/train.py", False),
        ("/job/.train.py", True),
        ("/job/lib/site-packages/train.py", False),
        ("/jobs/train.py", False),
    ],
)
def test_a_file_is_the_scripts_own_by_its_normal_path(file: str, own: bool) -> None:
    assert is_own_file(file, ("/job/",)) is own


def test_the_code_of_this_package_is_not_the_scripts_where_the_script_lies_above_it() -> None:
    files = [Path(str(module.__file__)) for module in (errors, own_code, kept)]
    resolved = [each.resolve() for each in files[1:]]  # in a development install the package is a directory of links
    assert not [each for each in (*files, *resolved) if is_own_file(str(each), (f"{each.parents[2]}/",))]
