"""What a check tries, and which scripts are on record: no process is needed for that."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from elasticd.ctl.check import parts, record
from elasticd.ctl.check.parts import Kind, Part
from elasticd.ctl.jobfile import Overrides, build
from elasticd.ctl.jobgpus import GpuOptions
from elasticd.ctl.submitting import unchecked
from elasticd.protocol.model import JobSpec


def part(kind: Kind, steps: int, steps_per_epoch: int | None) -> Part:
    return next(each for each in parts.planned(steps, steps_per_epoch, 4) if each.kind is kind)


@pytest.mark.parametrize("steps", range(4, 30))
@pytest.mark.parametrize("steps_per_epoch", [None, 1, 2, 3, 4, 7, 10, 1000])
def test_each_generation_has_a_step_and_a_worker_with_the_state(steps: int, steps_per_epoch: int | None) -> None:
    roster = part(Kind.ROSTER, steps, steps_per_epoch)
    begins = [begin for begin, _ in roster.entries]
    assert begins == sorted(set(begins))
    assert begins[-1] < steps
    for (_, before), (_, after) in zip(roster.entries, roster.entries[1:], strict=False):
        assert set(before) & set(after)
    assert roster.killed == {0}
    assert roster.stages[0] == tuple(sorted({worker for _, each in roster.entries for worker in each}))


def test_a_worker_joins_in_the_middle_of_an_epoch_and_at_an_edge() -> None:
    begins = [begin for begin, _ in part(Kind.ROSTER, 23, 10).entries]
    assert {begin % 10 == 0 for begin in begins[1:]} == {True, False}


def test_no_worker_that_was_there_at_the_start_is_left_at_the_end() -> None:
    _, last = part(Kind.ROSTER, 12, 4).entries[-1]
    assert last == (3,)


def test_restarts_are_in_the_middle_of_an_epoch_and_at_an_edge() -> None:
    assert part(Kind.RESTART, 12, 4).suspended_at == (2, 8, None)


@pytest.mark.parametrize(
    ("steps", "steps_per_epoch", "edges"), [(12, None, 0), (12, 100, 0), (12, 12, 0), (13, 12, 1), (12, 4, 2)]
)
def test_edges_that_were_seen_are_counted(steps: int, steps_per_epoch: int | None, edges: int) -> None:
    assert parts.edges(steps, steps_per_epoch) == edges


def test_one_virtual_worker_has_no_order() -> None:
    assert Kind.BACKWARDS not in [each.kind for each in parts.planned(12, 4, 1)]


def test_a_check_is_on_record_for_this_version_of_a_script_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    script = tmp_path / "train.py"
    script.write_text("a = 1\n")
    first = record.digest_of([script])
    assert first is not None
    assert record.read(first) is None
    record.write(first, ("python", "train.py"), True)
    found = record.read(first)
    assert found is not None
    assert found.same
    script.write_text("a = 2\n")
    second = record.digest_of([script])
    assert second is not None
    assert record.read(second) is None


def test_a_script_that_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    assert record.digest_of([tmp_path / "none.py"]) is None
    assert record.digest_of([]) is None


def spec_of(directory: Path, gpus: str) -> JobSpec:
    command = (sys.executable, "train.py")
    return build(None, Overrides(gpus=GpuOptions(gpus), command=command), directory, os.environ)


def test_submitting_an_elastic_job_says_once_that_its_script_can_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    script = tmp_path / "train.py"
    script.write_text("import elasticd as elastic\n")
    (told,) = unchecked(spec_of(tmp_path, "1:4"))
    assert "`elasticctl check train.py`" in told
    assert unchecked(spec_of(tmp_path, "2")) == []
    digest = record.digest_of([script])
    assert digest is not None
    record.write(digest, ("python", "train.py"), False)
    assert unchecked(spec_of(tmp_path, "1:4")) == []
    script.write_text("import torch\n")  # it does not join
    assert unchecked(spec_of(tmp_path, "1:4")) == []
