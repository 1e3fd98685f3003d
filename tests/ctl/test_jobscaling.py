"""Batches that grow, in job files and options."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticd.ctl.jobdocument import text_of
from elasticd.ctl.jobfile import Overrides, build
from elasticd.ctl.jobscaling import replayed
from elasticd.protocol.errors import UserError
from elasticd.protocol.model import BatchChange, JobSpec, Scaling

ENVIRON = {"PATH": "/usr/bin:/bin"}
CHANGES = (BatchChange(step=40, factor=2, rate=2.0, ramp=100), BatchChange(step=900, factor=4, rate=1.0, ramp=0))


def built(directory: Path, text: str, options: Overrides | None = None) -> JobSpec:
    file = directory / "job.yaml"
    file.write_text(f"command: sleep 1\n{text}\n")
    return build(file, options or Overrides(), directory, ENVIRON)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", None),
        ("scaling: hybrid", Scaling(hybrid=True, max_factor=8, ramp_steps=100)),
        ("scaling: {max_factor: 4}", Scaling(hybrid=True, max_factor=4, ramp_steps=100)),
        ("scaling: {mode: manual, ramp_steps: 0}", Scaling(hybrid=False, max_factor=8, ramp_steps=0)),
        ("replay_batches: [{step: 3, factor: 2}]", Scaling(replay=(BatchChange(step=3, factor=2),))),
        (
            "scaling: hybrid\nreplay_batches: [{step: 3, factor: 2, rate: 2, ramp: 9}]",
            Scaling(hybrid=True, replay=(BatchChange(step=3, factor=2, rate=2.0, ramp=9),)),
        ),
    ],
)
def test_a_file_allows_the_batch_to_grow(tmp_path: Path, text: str, terms: Scaling | None) -> None:
    spec = built(tmp_path, text)
    assert spec.scaling == terms
    again = tmp_path / "again.yaml"
    again.write_text(text_of(spec))
    assert build(again, Overrides(), tmp_path, ENVIRON) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scaling: weak", r"job\.yaml: scaling: 'weak' is not one of hybrid, manual"),
        ("scaling: {max_factor: 0}", r"scaling\.max_factor: is 0; allowed are 1 to 4096"),
        ("scaling: {ramp_steps: -1}", r"scaling\.ramp_steps: is -1; allowed are 0 to"),
        ("scaling: {factor: 2}", r"scaling: .*unknown field `factor`"),
        ("replay_batches: gone.json", r"replay_batches: .*gone\.json: No such file"),
        ("replay_batches: [{factor: 2}]", r"replay_batches: it is no history of batches"),
        ("replay_batches: [{step: 3, factor: 2, rate: .inf}]", r"replay_batches: it is no history of batches"),
        ("replay_batches: [{step: 3, factor: 2, rate: 0}]", r"rate 0\.0 is not allowed: it must be finite"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        built(tmp_path, text)


def test_a_history_comes_from_a_job_or_from_a_file(tmp_path: Path) -> None:
    view: Any = SimpleNamespace(batch_changes=CHANGES)
    assert replayed(None, lambda job: view) is None
    assert replayed("digits-3", lambda job: view) == CHANGES
    path = tmp_path / "history.json"
    path.write_text(json.dumps([{"step": 7, "factor": 2}]))
    assert replayed(str(path), lambda job: view) == (BatchChange(step=7, factor=2),)
    with pytest.raises(UserError, match=r"--replay-batches: .*none\.json: No such file"):
        replayed(f"{tmp_path}/none.json", lambda job: view)


def test_a_given_history_precedes_the_files(tmp_path: Path) -> None:
    spec = built(tmp_path, "replay_batches: [{step: 3, factor: 2}]", Overrides(replay_batches=CHANGES))
    assert spec.scaling == Scaling(replay=CHANGES)
