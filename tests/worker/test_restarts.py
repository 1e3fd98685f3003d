"""A job that goes on from a checkpoint in the middle of an epoch, in a new process, names what its script has lost."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from elasticd.worker.source.collecting import statement_at
from tests.forked import Scripts
from tests.worker.ranks import Ranks, checkpoints
from tests.worker.training_cases import EPOCHS

LOST = {
    "forward_from_an_epoch_on": r"linear\.forward is .* and not there on this start .*`if epoch >= 1:`",
    "method_from_an_epoch_on": r"Scaled \(the class Scaled, restart_cases\.py:\d+\) differs .*`if epoch >= 1:`",
    "attribute_of_torch_in_the_first_epoch": r"torch\.scale is 0\.5 .* and not there on this start",
    "losses_in_a_list": r"`losses = \[train_step\(batch\) for batch in batches\]` \(restart_cases\.py:\d+\) gets the results",
    "list_in_a_history": r"without what its script has kept in history \(restart_cases\.py:\d+\)",
    "last_list_of_a_function": r"losses",
    "cache_of_draws": r"drawn .*must follow from the arguments alone",
    "batches_beside_others": r"begins anew: scale \(restart_cases\.py:\d+\) \(count",
    "numbers_of_the_epochs": r"(?s)begins anew: number \(restart_cases\.py:\d+\) \(count.*weigh is ",
    "rows_of_a_database": r"changes of loop bodies to rows \(a Connection, restart_cases\.py:\d+\), which cannot be read",
    "seeds_that_are_spawned": r"seeds \(a SeedSequence, .*make it from them: state = run\.state\(seeds=",
    "best_in_a_file_of_the_process": r"names come from tempfile\.TemporaryDirectory\(\) \(restart_cases\.py:\d+\)",
    "saved_mean_of_an_epoch": r"begins anew: total \(restart_cases\.py:\d+\), number \(restart_cases\.py:\d+\) \(count",
    "handed_cases.objects_that_prepare_gets": r"(?s)(?=.*sampler\.passes is \d)(?=.*collate_fn\.calls)"
    r"(?=.*before_update\.calls)",
    "handed_cases.hooks_with_a_state": r"(?s)(?=.*_backward_hooks\[0\]\.calls is)"
    r"(?=.*_optimizer_step_pre_hooks\[0\].*in the hook)",
    "number_in_the_header": r"begins anew: i \(restart_cases\.py:\d+\) \(count",
}


ONE = [
    "numbers_within_an_epoch",
    "list_under_two_names",
    "generators_and_views",
    "members_and_masks",
    "additions_to_objects_of_torch",
    "tensors_of_bodies_and_of_epochs",
    "copies_set_at_epochs",
    "containers_and_numbers_of_other_classes",
    "hidden_state_that_the_next_body_detaches",
]


def restarted(directory: Path, case: str, steps: Sequence[int] = (9, 15)) -> list[str]:
    """Train alone to the end, then again from the middle of epoch 1, and from that of epoch 2; return the last states.

    steps: after which a process goes on; an epoch has 6.

    The process that begins in epoch 1 runs the code of that epoch's beginning itself; the one that begins in epoch 2 does not.
    """
    states = []
    with contextlib.closing(Scripts()) as scripts, contextlib.closing(Ranks(scripts)) as ranks:
        for last in (6 * EPOCHS, *steps):
            for step, path in checkpoints(directory).items():
                if step > last:
                    path.unlink()
            states += ranks.train(
                case if "." in case else f"restart_cases.{case}", [[0, [0]]], checkpoints=str(directory)
            ).states
    return states


@pytest.mark.cluster
@pytest.mark.parametrize("case", LOST)
def test_what_a_restart_in_the_middle_of_an_epoch_loses_is_named(tmp_path: Path, capfd: Any, case: str) -> None:
    assert len(set(restarted(tmp_path, case))) > 1, "the case shows nothing"
    told = capfd.readouterr().err
    assert re.search(LOST[case], told), told
    assert "shown" not in told


@pytest.mark.cluster
@pytest.mark.parametrize("case", ONE)
def test_a_restart_of_the_only_worker_has_what_its_bodies_have_left(tmp_path: Path, capfd: Any, case: str) -> None:
    assert len(set(restarted(tmp_path, case))) == 1
    assert "goes on from a checkpoint" not in capfd.readouterr().err


@pytest.mark.cluster
@pytest.mark.parametrize("case", ["made_from_weights_in_place", "copies_set_at_epochs"])
def test_a_restart_in_the_first_epoch_has_what_its_beginning_has_changed(tmp_path: Path, capfd: Any, case: str) -> None:
    assert len(set(restarted(tmp_path, case, (3, 4)))) == 1
    assert "goes on from a checkpoint" not in capfd.readouterr().err


@pytest.mark.cluster
def test_the_state_of_a_hook_of_all_modules_is_there_behind_a_restart(tmp_path: Path) -> None:
    assert len(set(restarted(tmp_path, "handed_cases.hook_of_all_modules"))) == 1


@pytest.mark.cluster
def test_another_name_of_the_optimizers_state_is_no_copy_behind_a_restart(tmp_path: Path) -> None:
    assert len(set(restarted(tmp_path, "momentum_by_another_name"))) == 1


COLLECTS = [
    "losses = list(map(step, batches))",
    "total = sum(step(b) for b in batches)",
    "mean = np.mean([step(b) for b in batches])",
    "return {i: step(b) for i, b in enumerate(batches)}",
    "history += [step(b) for b in batches]",
    "scheduler.step(sum(map(step, batches)))",
    "losses = [*map(step, batches)]",
    "if (mean := sum(map(step, batches))) > 1: stop()",
    "for total in accumulate(map(step, batches)): show(total)",
]
OTHERS = [
    "for x in batches: step(x)",
    "for x in map(move, batches): step(x)",
    "list(map(step, batches))",
    "deque(map(step, batches), maxlen=0)",
    "print(sum(map(step, batches)))",
    "x, y = [each.to(device) for each in next(batches)]",
    "iterator = iter(batches)",
    "stats = train_epoch(batches)",
    "history.extend(map(step, batches))",
    "shown = list(map(step, batches))",
]


@pytest.mark.parametrize("line", [*COLLECTS, *OTHERS])
def test_a_statement_that_collects_a_value_from_a_pass_is_told_from_others(line: str) -> None:
    tree = ast.parse(f"def train():\n    for epoch in epochs:\n        {line}\n")
    found = statement_at(tree, 3, {"shown"}.__contains__)
    assert (found is not None) is (line in COLLECTS)
