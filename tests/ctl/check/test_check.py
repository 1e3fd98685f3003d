"""`elasticctl check` on small scripts, as a person would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import torch, elasticd as elastic
{before}
run = elastic.join(seed=1)
torch.manual_seed(0)
data = [(torch.randn(4), torch.randint(0, 3, ())) for _ in range(48)]
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
{prepared}
for epoch in run.epochs(4):
    {epoch}
    for x, y in batches:
        {body}
        loss = torch.nn.functional.cross_entropy(model({x}), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        {end}
{save}
"""


def script(
    before: str = "",
    prepared: str = "",
    epoch: str = "pass",
    body: str = "pass",
    x: str = "x",
    end: str = "pass",
    save: str = "run.save(model, 'model.pt')",
) -> str:
    return textwrap.dedent(HEAD).format(
        before=before, prepared=prepared, epoch=epoch, body=body, x=x, end=end, save=save
    )


class Desk:
    """A directory to work in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(directory / "state"),
            "TMPDIR": str(directory / "tmp"),
        }
        (directory / "tmp").mkdir()

    def check(self, source: str, *options: str) -> tuple[int, str]:
        """Exit code and output."""
        (self.directory / "train.py").write_text(source)
        command = [sys.executable, "-m", "elasticd.ctl.main", "check", "--limit", "10m", *options, "train.py"]
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=False
        )
        assert list((self.directory / "tmp").glob("elasticctl-check-*")) == [], "something is left behind"
        return done.returncode, done.stdout + done.stderr

    def verdict(self, source: str, *options: str) -> dict[str, Any]:
        code, output = self.check(source, "--json", *options)
        document: dict[str, Any] = json.loads(output)
        assert code == {"same bits": 0, "differs": 1, "refused": 1, "could not run": 2}[document["verdict"]]
        return document


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def test_a_script_that_fails_by_itself_is_told_with_its_own_error(desk: Desk) -> None:
    code, output = desk.check("import elasticd\nraise ValueError('no such data')\n")
    assert code == 2
    assert "the script fails by itself: ValueError: no such data" in output


def test_a_script_that_does_not_join_cannot_be_tried(desk: Desk) -> None:
    code, output = desk.check("print('trained')\n")
    assert code == 2
    assert "has not called elastic.join()" in output


def test_a_script_that_hangs_is_ended_and_shows_where(desk: Desk) -> None:
    # On a machine that does much else the script may not have come to its second line when the first limit is over.
    for limit_s in (5, 30, 300):
        code, output = desk.check("import time\ntime.sleep(1000)\n", "--limit", f"{limit_s}s")
        assert code == 2
        assert f"has not come to an end after {limit_s} s" in output
        if 'train.py", line 2 in <module>' in output:
            break
    assert 'train.py", line 2 in <module>' in output


def test_a_file_that_is_not_there_and_a_launcher_are_refused(desk: Desk) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "elasticd.ctl.main", "check", *words]
        done = subprocess.run(command, cwd=desk.directory, env=desk.environment, capture_output=True, text=True)
        assert done.returncode == 2
        return done.stderr

    assert "there is no file none.py" in run("none.py")
    assert "torchrun starts processes of its own" in run("--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert "give a script" in run()


@pytest.mark.cluster
def test_what_the_library_refuses_is_shown_without_a_traceback(desk: Desk) -> None:
    source = script(body="for p in model.parameters(): p.data.mul_(0.9)")
    code, output = desk.check(source)
    assert code == 1
    assert "REFUSED" in output
    assert "Traceback" not in output


def test_a_process_group_that_is_not_there_is_refused_with_what_to_write(desk: Desk) -> None:
    found = desk.verdict(script(body="torch.distributed.get_world_size()"))
    assert found["verdict"] == "refused"
    (finding,) = found["findings"]
    assert finding["what"] == "refused"
    assert "ValueError: Default process group has not been initialized" in finding["text"]
    assert "run.gather(tensor)" in finding["text"]


@pytest.mark.cluster
def test_a_value_of_one_worker_in_steps_that_a_short_membership_misses_is_found(desk: Desk) -> None:
    found = desk.verdict(script(x="(x + (run.steps_done % 10 == 9 and run.rank == 0))"))
    assert found["verdict"] == "differs"
    assert "two workers from the start" in {each["tried"] for each in found["findings"]}


@pytest.mark.cluster
def test_an_elastic_script_ends_with_the_same_bits_and_writes_nothing(desk: Desk) -> None:
    found = desk.verdict(script(end="total = loss.item()"))
    assert found["verdict"] == "same bits"
    assert [each["part"] for each in found["parts"]] == [
        "one worker",
        "another hash seed",
        "bodies in reverse",
        "two workers",
        "join, kill, leave",
        "restarts",
    ]
    assert found["edges"] >= 2
    assert not (desk.directory / "model.pt").exists()
    assert len(list((desk.directory / "state" / "elasticctl" / "checks").glob("*.json"))) == 1


@pytest.mark.cluster
def test_a_counter_that_the_training_reads_is_named_with_its_line_and_what_to_write(desk: Desk) -> None:
    counting = "if len(x) > 0: global_step += 1"
    source = script(prepared="global_step = 0", body=counting, x="x * min(1.0, 0.5 + 0.01 * global_step)")
    found = desk.verdict(source)
    assert found["verdict"] == "differs"
    named = [each for each in found["findings"] if each["name"]]
    assert {each["name"] for each in named} == {"global_step"}
    assert {each["line"] for each in named} == {line_of(source, counting)}
    assert "run.state(global_step=0)" in named[0]["remedy"]


@pytest.mark.cluster
def test_a_counter_that_only_a_log_reads_is_no_difference(desk: Desk) -> None:
    found = desk.verdict(script(prepared="seen = 0", end="seen += len(x); print(seen)"))
    assert found["verdict"] == "same bits"
    assert [each["name"] for each in found["without_effect"]] == ["seen"]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("read", "what"),
    [
        ("shadow", "lacks what the script saves"),
        ("vars()['sha' + 'dow']", "run.save would write something else to model.pt"),
    ],
)
def test_an_average_in_a_list_that_is_saved_is_named(desk: Desk, read: str, what: str) -> None:
    source = script(
        prepared="shadow = [p.detach().sum() for p in model.parameters()]",
        end="shadow = [0.9 * s + 0.1 * p.detach().sum() for s, p in zip(shadow, model.parameters())]",
        save=f"run.save({{'shadow': {read}}}, 'model.pt')",
    )
    found = desk.verdict(source)
    assert any(what in each["what"] for each in found["findings"])
    assert any(each["name"] and each["name"].startswith("shadow") for each in found["findings"])


@pytest.mark.cluster
def test_a_counter_of_loop_bodies_that_decides_about_a_save_is_named(desk: Desk) -> None:
    counting = script(end="if i % 4 == 0: run.save(model, f'after_{i}.pt')").replace(
        "for x, y in batches:", "for i, (x, y) in enumerate(batches, 1):"
    )
    found = desk.verdict(counting, "--steps", "8")
    assert found["verdict"] == "differs"
    told = {each["name"]: each for each in found["findings"]}
    assert "and not on one worker alone" in told["i"]["what"]
    assert told["i"]["remedy"] == "take run.steps_done in its place"


@pytest.mark.cluster
def test_a_switch_at_an_epoch_is_found_at_its_edge(desk: Desk) -> None:
    local = "import collections; scale = collections.namedtuple('of_no_module', 'by')(1.0)"
    source = script(prepared=local, epoch="if epoch == 1: scale = scale._replace(by=0.5)", x="x * scale.by")
    found = desk.verdict(source)
    assert found["verdict"] == "differs"
    assert {each["name"].partition("[")[0] for each in found["findings"]} == {"scale"}


@pytest.mark.cluster
def test_a_switch_at_an_epoch_and_a_counter_of_bodies_come_to_new_workers(desk: Desk) -> None:
    switch = {"prepared": "scale, step = 1.0, 0", "epoch": "if epoch == 1: scale = 0.5", "x": "x * scale + 0.01 * step"}
    assert desk.verdict(script(**switch, body="step += 1"))["verdict"] == "same bits"


@pytest.mark.cluster
def test_a_list_shuffled_before_join_is_not_deterministic_at_all(desk: Desk) -> None:
    source = script(
        before="import random; order = list(range(48)); random.shuffle(order)",
        prepared="",
        x="x + sum(place * each for place, each in enumerate(order)) / 100_000",  # equal after two shuffles only by rare chance
    )
    found = desk.verdict(source)
    assert found["verdict"] == "differs"
    assert [each["name"] for each in found["findings"]] == ["order"]
    assert found["findings"][0]["tried"] == "the same again"


@pytest.mark.cluster
def test_the_order_of_a_set_is_told_and_is_the_same_in_a_job(desk: Desk) -> None:
    source = script(before="names = list({'cat', 'bird', 'horse', 'monkey', 'ox'})", x="x * len(names[0])")
    found = desk.verdict(source)
    assert found["verdict"] == "same bits"
    assert [each["name"] for each in found["notes"]] == ["names"]
