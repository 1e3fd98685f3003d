"""The simulated cluster: it is deterministic, it finds planted bugs, and failing histories shrink."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verification.world import planted
from verification.world.campaign import Journal, OtherCampaign, Settings
from verification.world.drawing import Shape, draw
from verification.world.history import Outcome, play, shrink
from verification.world.plan import WEATHERS
from verification.world.world import World

ROOT = Path(__file__).parents[2]


def story_elsewhere(seed: int, hash_seed: str) -> str:
    imports = "from verification.world.campaign import Settings; from verification.world.history import play"
    code = f"{imports}; print(play(Settings().plan({seed}), tell=True).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# In 43 there are loans and priorities, in 60 users stop jobs, in 144 a job begins anew on GPUs of another type.
@pytest.mark.parametrize("seed", [*range(1000, 1006), 43, 60, 144])
def test_no_invariant_breaks(seed: int) -> None:
    outcome = play(Settings().plan(seed), tell=True)
    assert not outcome.failed, "\n".join(outcome.story[-60:])
    if seed in (43, 60):  # in hostile weather and in that of TCP
        assert [story_elsewhere(seed, hash_seed) for hash_seed in ("1", "2")] == 2 * [outcome.digest], (
            "it depends on hashes"
        )


def test_leaving_an_entry_out_changes_nothing_before_it() -> None:
    plan = Settings("tcp").plan(60)
    last = len(plan.entries) - 1
    whole, fewer = play(plan, tell=True), play(plan.keep(frozenset(range(last))), tell=True)
    before = [line for line in whole.story if float(line[:9]) < plan.entries[last].at]
    assert before == list(fewer.story[: len(before)])
    assert len(before) > 50


def test_a_failing_history_is_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = draw(2, WEATHERS["tcp"], Shape(jobs=2, storm_s=200.0))
    first = plan.jobs[0].spec.name

    def fails_for_one_job(world: World) -> None:
        assert not any(job.startswith(first) for job in world.oracle.submitted().values())

    monkeypatch.setattr(World, "run_until_quiet", fails_for_one_job)
    short, kept = shrink(plan, "no machine raises")
    assert [job.spec.name for job in short.jobs] == [first]
    assert short.faults == ()
    assert kept == {0}


def test_a_campaign_goes_on_from_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "campaign"
    journal = Journal(path, Settings())
    journal.note(Outcome(7, "an invariant", "why", 3, 1.0, 2.0))
    with path.open("a") as file:
        file.write('{"seed": 8, "inv')
    known = Journal(path, Settings()).known
    assert known == {7: Outcome(7, "an invariant", "why", 3, 1.0, 2.0)}
    with pytest.raises(OtherCampaign, match="with other options"):
        Journal(path, Settings("calm"))


def test_every_planted_bug_fits_the_code() -> None:
    found = planted.bugs(planted.BUGS.read_text())
    assert len(found) >= 30
    found += planted.bugs(planted.BUGS.with_name("bugs_not_found.txt").read_text())
    assert len({bug.name for bug in found}) == len(found)
    for bug in found:
        texts: dict[str, str] = {}
        for change in (*bug.without, *bug.changes):
            text = texts.get(change.file) or (ROOT / change.file).read_text()
            assert text.count(change.before) == 1, bug.name
            assert change.after != change.before, bug.name
            texts[change.file] = text.replace(change.before, change.after)


HOSTS_TOO_EARLY = """file worker/hosting.py
-         sizes.append(each + (position < larger) if host else 0)
+         sizes.append(each + (position < larger) if host else 1)"""


def test_a_planted_bug_is_found(tmp_path: Path) -> None:
    text = f"\n== a joiner hosts a virtual worker in its first step\n{HOSTS_TOO_EARLY}\n"
    (bug,) = planted.bugs(text)
    found = planted.search(bug, seeds=40, anew=True)
    assert found.seed is not None
    assert found.invariant


HARMLESS = "file worker/hosting.py\n- def assign(\n+ # Who hosts what.\n+ def assign("


def test_a_planted_bug_may_take_back_the_rule_that_masks_it() -> None:
    (bug,) = planted.bugs(
        f"\n== it hosts too early\nseed 3\n{HARMLESS}\nwithout joiners host nothing\n{HOSTS_TOO_EARLY}\n"
    )
    assert bug.seed == 3
    assert bug.mask == "joiners host nothing"
    assert [change.after for change in bug.without] == [
        "        sizes.append(each + (position < larger) if host else 1)"
    ]
    assert [change.before for change in bug.changes] == ["def assign("]
    with pytest.raises(planted.BugsFileError, match="does not say how to take back"):
        planted.bugs(f"\n== it hosts too early\n{HARMLESS}\nwithout joiners host nothing\n")


def test_what_fails_without_the_bug_does_not_count() -> None:
    (bug,) = planted.bugs(f"\n== a comment\n{HARMLESS}\nwithout joiners host nothing\n{HOSTS_TOO_EARLY}\n")
    assert planted.search(bug, seeds=2, anew=True).seed is None


def test_a_planted_bug_is_found_in_a_copy_that_has_its_mask_taken_back() -> None:
    (bug,) = planted.bugs(f"\n== it hosts too early\n{HOSTS_TOO_EARLY}\nwithout nothing of use\n{HARMLESS}\n")
    assert planted.search(bug, seeds=40, anew=True).seed is not None
