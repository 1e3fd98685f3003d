"""`elasticctl policy` without a cluster: known policies, and the check of files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticd.ctl.main import main
from elasticd.scheduler.options import WrongOption
from elasticd.scheduler.policies import POLICIES, load_policy

CONFIGS = Path(__file__).parents[2] / "configs" / "policies"

Call = Callable[..., tuple[str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in this process, in an empty directory; returns stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["elasticctl", "--dir", str(tmp_path / "none"), "policy", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert (ended.value.code or 0) == code, captured.err
        return captured.out, captured.err

    return run


def test_every_policy_and_stage_is_listed_with_its_rule(call: Call) -> None:
    rules = json.loads(call("list", "--json")[0])["rules"]
    names = {
        kind: [rule["name"] for rule in rules if rule["kind"] == kind] for kind in {rule["kind"] for rule in rules}
    }
    assert names == {
        "policy": [kind.name for kind in POLICIES],
        "admission": ["all", "bounded", "elasticflow", "edf"],
        "packing": ["none", "network"],
        "placement": ["fewest-servers", "buddy"],
    }
    assert all(rule["rule"] for rule in rules)
    lines = call("list")[0].splitlines()
    assert len(lines) == 1 + len(rules)


def test_every_parameter_has_a_type_and_a_meaning(call: Call) -> None:
    for rule in json.loads(call("list", "--json")[0])["rules"]:
        for parameter in rule["parameters"]:
            assert parameter["type"], (rule["name"], parameter)
            assert parameter["meaning"], f"{rule['name']}: no docstring tells what `{parameter['name']}`: is"
            for ending, unit in (("_gpu_s", "GPU-seconds"), ("_s", " seconds"), ("_jobs", "jobs")):
                if parameter["name"].endswith(ending):
                    assert unit in parameter["meaning"], f"{rule['name']}: `{parameter['name']}` has no unit"
                    break


@pytest.mark.parametrize("kind", POLICIES, ids=lambda kind: str(kind.name))
def test_a_policys_parameters_are_a_frozen_struct_and_all_of_them_are_shown(call: Call, kind: Any) -> None:
    struct = kind.Parameters
    assert issubclass(struct, msgspec.Struct)
    assert struct.__struct_config__.frozen
    assert struct.__struct_config__.forbid_unknown_fields
    shown = json.loads(call("show", kind.name, "--json")[0])["parameters"]
    assert {one["name"]: one["default"] for one in shown} == json.loads(msgspec.json.encode(struct()))
    out, _ = call("show", kind.name)
    lines = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert lines >= set(msgspec.to_builtins(struct()))


def wrong_values(kind: msgspec.inspect.Type) -> list[object]:
    """Invalid values for a field of this type: other types, and numbers outside its bounds."""
    found: list[object] = [{"no": "such thing"}]
    for one in kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,):
        match one:
            case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
                found += ["many", math.nan, math.inf]
                found += [bound - 1 for bound in (one.ge, one.gt) if bound is not None]
                found += [bound + 1 for bound in (one.le, one.lt) if bound is not None]
                found += [bound for bound in (one.gt, one.lt) if bound is not None]
            case msgspec.inspect.BoolType() | msgspec.inspect.LiteralType():
                found += ["perhaps", 7]
            case msgspec.inspect.VarTupleType():
                found += [[], [5.0, 3.0], [math.inf], 7]
            case msgspec.inspect.NoneType():
                pass
            case _:
                raise AssertionError(f"which values are wrong for {one}?")
    return found


@pytest.mark.parametrize("kind", POLICIES, ids=lambda kind: str(kind.name))
def test_a_wrong_parameter_is_refused_in_one_sentence_that_names_its_field(kind: Any) -> None:
    known = msgspec.inspect.type_info(kind.Parameters)
    assert isinstance(known, msgspec.inspect.StructType)
    for field in known.fields:
        for value in wrong_values(field.type):
            with pytest.raises(WrongOption) as refused:
                load_policy({"policy": kind.name, "parameters": {field.name: value}}, "here")
            assert refused.value.field.split("[")[0] == f"parameters.{field.name}", value
            assert str(refused.value).startswith(f"here: parameters.{field.name}")
            assert "\n" not in str(refused.value)
    with pytest.raises(WrongOption, match=r"parameters\.patience: is unknown"):
        load_policy({"policy": kind.name, "parameters": {"patience": 1}}, "here")


def test_a_policy_is_shown_with_its_parameters(call: Call) -> None:
    out, _ = call("show", "afs-p")
    for words in ("afs-p: policy", "unit_s", "number (more than 1)", "7200", "before another one takes its turn"):
        assert words in out
    assert "needs to know how long jobs take" in call("show", "afs-l")[0]
    shown = json.loads(call("show", "bounded", "--json")[0])
    assert (shown["kind"], shown["parameters"][0]["default"]) == ("admission", 1000)


def test_what_is_not_known_is_refused_with_what_is(call: Call) -> None:
    _, err = call("show", "fairest", code=2)
    (line,) = err.splitlines()
    for word in ("fairest", "max-min", "bounded", "network", "buddy"):
        assert word in line


def test_the_files_that_come_with_the_program_are_right(call: Call) -> None:
    files = sorted(map(str, CONFIGS.glob("*.yaml")))
    out, err = call("check", *files)
    assert out.splitlines() == [f"{file}: {Path(file).stem}" for file in files]
    assert err == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy: best\n", ["line 1", "policy", "'best'", "max-min"]),
        ("# nothing\nparameters: {}\n", ["policy", "missing"]),
        ("policy: afs-p\nparameters:\n  unit: 3\n", ["line 3", "parameters.unit", "unknown", "unit_s"]),
        ("policy: afs-p\nparameters:\n  unit_s: soon\n", ["line 3", "parameters.unit_s", "'soon'"]),
        ("policy: afs-p\nparameters: {unit_s: 0.5}\n", ["line 2", "parameters.unit_s", "0.5", "1"]),
        ("policy: tiresias-l\nparameters: {thresholds_gpu_s: [9, 3]}\n", ["line 2", "thresholds_gpu_s", "ascend"]),
        (
            "policy: tiresias-l\nparameters:\n  thresholds_gpu_s:\n  - 9\n  - x\n",
            ["line 5", "thresholds_gpu_s[1]", "'x'"],
        ),
        ("policy: fifo\npolicies: fifo\n", ["line 2", "policies", "unknown", "placement"]),
        ("policy: fifo\npacking: tight\n", ["line 2", "packing", "'tight'", "none, network"]),
        ("policy: fifo\nplacement: {name: tight}\n", ["line 2", "placement.name", "'tight'", "buddy"]),
        ("policy: fifo\nadmission: {name: bounded, parameters: {waiting_jobs: 0}}\n", ["waiting_jobs", "0", ">= 1"]),
        ("- fifo\n", ["object"]),
        ("policy: [fifo\n", ["line"]),
    ],
)
def test_a_wrong_file_is_refused_with_file_line_field_and_reason(call: Call, text: str, words: list[str]) -> None:
    Path("wrong.yaml").write_text(text)
    _, err = call("check", "wrong.yaml", code=2)
    (line,) = err.splitlines()
    for word in ("elasticctl: wrong.yaml: ", *words):
        assert word in line


def test_all_files_are_checked_even_if_the_first_is_wrong(call: Call) -> None:
    Path("wrong.yaml").write_text("policy: fifo\npacking: tight\n")
    Path("right.yaml").write_text("policy: fifo\nplacement: {name: buddy}\npacking: network\nadmission: bounded\n")
    findings = json.loads(call("check", "wrong.yaml", "none.yaml", "right.yaml", "--json", code=2)[0])["files"]
    assert [finding["ok"] for finding in findings] == [False, False, True]
    assert (findings[0]["line"], findings[0]["field"]) == (2, "packing")
    assert findings[2]["policy"] == "fifo"


MINE = """\
from elasticd.scheduler.plugin import PolicyPlugin


class Mine(PolicyPlugin):
    def shares(self, jobs, gpus, now, rng):
        return [0] * (len(jobs) - 1)
"""


def test_a_policy_in_a_python_file_is_tried_out(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace(" - 1", ""))
    assert json.loads(call("check", "mine.py", "--json")[0])["files"] == [
        {"file": "mine.py", "ok": True, "policy": "mine.py"}
    ]
    (tmp_path / "mine.py").write_text(MINE)
    (found,) = json.loads(call("check", "mine.py", "--json", code=2)[0])["files"]
    assert (found["ok"], found["line"]) == (False, 5)
    assert "a whole number for each is wanted" in found["reason"]
    (tmp_path / "mine.py").write_text("x = (")
    assert "mine.py: line 1: '(' was never closed" in call("check", "mine.py", code=2)[1]


def test_a_policy_in_a_python_file_is_not_for_users_to_set(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    assert "only the operator's controller.yaml may name it" in call("set", "./mine.py", code=2)[1]
    (tmp_path / "mine.yaml").write_text("policy: mine.py\n")
    assert "only the operator's controller.yaml may name it" in call("set", "./mine.yaml", code=2)[1]


def test_without_a_cluster_it_says_so(call: Call) -> None:
    assert "no cluster at" in call("show", code=3)[1]
    assert "no cluster at" in call("set", "fifo", code=3)[1]
