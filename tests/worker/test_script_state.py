"""The script's own values (`run.state`, `run.per_virtual_worker`, `run.epoch_begin`): equal bits in every history."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run
from elasticd.worker.state.epoch_values import EpochValues, Unfilled
from tests.forked import Scripts
from tests.worker.ranks import Ranks, also, restarted

ALONE = [[0, [0]]]
# One, three, one of them lost in a step that it has missed, two, others; in the middle of epochs and at their edges
CHANGING = [[0, [0]], [5, [0, 1, 2]], [10, [0, 1, 2], [2]], [13, [1, 2]], [18, [2, 3, 4]], [22, [3, 4]]]

DRAWS = ["leaders_draws", "leaves_its_loop"]
CASES = ["curriculum", "averages", "replay", "large", "in_hooks", "recurrent", "teachers"]


@pytest.mark.parametrize("case", [CASES[0], *DRAWS, *also(*CASES[1:])])
def test_a_loss_that_depends_on_a_scripts_values_gives_the_bits_of_one_worker_alone(ranks: Any, case: str) -> None:
    (expected,) = ranks.outcome(f"state_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"state_cases.{case}", CHANGING).states) == {expected}


@pytest.mark.parametrize("case", [CASES[0], *also(*CASES[1:])])
def test_a_job_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(ranks: Any, tmp_path: Path, case: str) -> None:
    """Two workers in the middle of an epoch, and one after the restart; another joins in a later epoch."""
    (expected,) = ranks.outcome(f"state_cases.{case}", ALONE).states
    assert set(restarted(ranks, f"state_cases.{case}", tmp_path, 9).states) == {expected}


# ------------------------------------------------------------------------------------------- a single worker; refusals


def a_run(virtual_workers: int = 4) -> Run:
    return Run(LocalControl.alone(virtual_workers), None, virtual_workers, 0)


def train(run: Run, body: Any = lambda x: None, behind: Any = lambda x: None, epoch: Any = lambda number: None) -> None:
    """Two epochs of three steps; the samples are 0, 1, 2, ... in order."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    numbers = torch.arange(3.0 * 2 * run.virtual_workers).unsqueeze(1)
    model, optimizer, batches = run.prepare(model, optimizer, (numbers,), 2, shuffle=False)
    for number in run.epochs(2):
        epoch(number)
        for (x,) in batches:
            model(x).sum().backward()
            body(x)
            optimizer.step()
            behind(x)


def test_alone_each_body_begins_with_the_jobs_values_and_virtual_worker_0s_are_kept() -> None:
    run = a_run()
    state = run.state(step=0, first=-1.0, seen=[])
    found = []

    def body(x: torch.Tensor) -> None:
        found.append((state.step, state.first, len(state.seen)))
        state.first = float(x[0])
        state.seen.append(x[0])

    def behind(x: torch.Tensor) -> None:
        state.step += 1

    train(run, body, behind)
    assert found == [(step, before, step) for step, before in enumerate((-1.0, 0, 8, 16, 0, 8)) for _ in range(4)]
    assert (state.step, state.first) == (6, 16.0)
    assert [float(each) for each in state.seen] == [0, 8, 16, 0, 8, 16]


def test_alone_each_virtual_worker_has_values_of_its_own() -> None:
    run = a_run()
    own = run.per_virtual_worker(sums=[], last=None)
    found = []

    def body(x: torch.Tensor) -> None:
        found.append([*own.sums])
        own.sums.append(float(x[0]))
        own.last = x.requires_grad_().sum()

    train(run, body)
    assert found[-4:] == [[v * 2.0 + step for step in (0, 8, 16, 0, 8)] for v in range(4)]
    with pytest.raises(
        UserError, match=r"last of run.per_virtual_worker\(\) belongs to the virtual worker whose loop body runs"
    ):
        own.last  # noqa: B018


def test_a_name_that_was_not_declared_is_refused_with_the_line_to_write() -> None:
    run = a_run()
    state, own = run.state(step=0), run.per_virtual_worker(hidden=None)
    with pytest.raises(
        AttributeError, match=r"state.best was not declared: before the loop write run.state\(best=...\)"
    ):
        state.best = 1.0
    with pytest.raises(AttributeError, match="was not declared"):
        state.best  # noqa: B018
    with pytest.raises(AttributeError, match=r"run.per_virtual_worker\(other=...\)"):
        own.other = 1


def test_what_cannot_travel_is_refused_by_name_where_it_is_declared_and_where_it_is_set() -> None:
    run = a_run()
    with pytest.raises(UserError, match=r"state.queue\['a'\]\[1\] is a _thread.lock, which cannot be carried along"):
        run.state(queue={"a": [1, __import__("threading").Lock()]})
    run.state(step=0)
    with pytest.raises(UserError, match=r"run.state\(step=...\) was called twice"):
        run.state(step=1)
    state = run.state(later=None)

    def body(x: torch.Tensor) -> None:
        state.later = object()

    with pytest.raises(UserError, match=r"state.later is a builtins.object, which cannot be carried along"):
        train(run, body)


def test_values_are_declared_before_the_loop() -> None:
    run = a_run()
    with pytest.raises(UserError, match=r"run.state\(\) was called in the loop"):
        train(run, epoch=lambda number: run.state(late=number))


def test_a_value_of_one_micro_batch_behind_the_step_is_refused_by_name() -> None:
    run = a_run()
    state = run.state(best=9.0)

    def behind(x: torch.Tensor) -> None:
        state.best = min(state.best, float(x[0]))

    with pytest.raises(
        UserError, match=r"state.best is 0.0 for one virtual worker and 2.0 for another behind optimizer.step\(\)"
    ):
        train(run, behind=behind)


@pytest.mark.parametrize(
    ("copied", "refused"),
    [
        (lambda model: model.state_dict().copy(), True),
        (lambda model: [each.detach() for each in model.parameters()], True),
        (lambda model: copy.deepcopy(model.state_dict()), False),
        (lambda model: model.weight.detach().clone(), False),
    ],
)
def test_a_value_that_contains_the_weights_themselves_is_refused_by_name(copied: Any, refused: bool) -> None:
    run = a_run()
    state = run.state(best=None)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = run.prepare(model, optimizer, (torch.ones(16, 1),), 2)
    said = r"state.best contains tensors of the model itself, .* copy.deepcopy\(model.state_dict\(\)\)"
    with pytest.raises(UserError, match=said) if refused else contextlib.nullcontext():
        for _ in run.epochs(2):
            for (x,) in batches:
                model(x).sum().backward()
                optimizer.step()
            state.best = copied(model)


def test_an_average_that_no_step_has_made_yet_is_refused_with_the_place_to_read_it() -> None:
    run = a_run()
    with pytest.raises(UserError, match=r"run.means has no 'loss': .* run.mean\(loss=...\). .* @run.every"):
        train(run, body=lambda x: run.mean(loss=x.sum()), behind=lambda x: run.means["loss"])
    assert run.means.get("loss") is None


@pytest.mark.cluster
def test_a_value_of_one_workers_micro_batch_behind_the_step_is_refused_by_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with contextlib.ExitStack() as stack:
        scripts = stack.enter_context(contextlib.closing(Scripts()))  # its ranks print where `capfd` reads
        four = stack.enter_context(contextlib.closing(Ranks(scripts)))
        stack.enter_context(pytest.raises(AssertionError, match="a rank has failed"))
        four.train("state_cases.a_loss_behind_the_step", [[0, [0, 1, 2, 3]]])
    printed = capfd.readouterr().err
    assert "UserError: state.last is" in printed
    assert "before step 4: what is set behind optimizer.step()" in printed


def test_what_an_epoch_begins_with_is_computed_there_and_nowhere_else() -> None:
    run = a_run()
    found: list[Any] = []
    train(run, epoch=lambda number: found.append((run.epoch_begin(lambda: [number]), run.epoch_begin(lambda: number))))
    assert found == [([0], 0), ([1], 1)]
    with pytest.raises(UserError, match=r"run.epoch_begin\(\) was called outside an epoch's beginning"):
        train(other := a_run(), lambda x: other.epoch_begin(lambda: 1))
    with pytest.raises(UserError, match=r"the value of run.epoch_begin\(\) number 1 is a builtins.object"):
        train(another := a_run(), epoch=lambda number: another.epoch_begin(object))


def test_carried_values_fill_what_the_script_has_and_a_module_is_built_and_filled() -> None:
    ours, theirs = EpochValues(), EpochValues()
    made: list[Any] = []
    for values, weight in ((ours, 1.0), (theirs, 2.0)):
        values.begin(3)
        module = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(module.weight, weight)
        made.append(
            [
                values.value(3, lambda each=each: each, lambda number: None)
                for each in (module, [weight], torch.full((int(weight),), weight))
            ]
        )
    theirs.set(ours.get())
    module, numbers, tensor = made[1]
    assert (module.weight.item(), numbers, tensor.tolist()) == (1.0, [1.0], [1.0])
    late = EpochValues()
    late.set(ours.get())
    late.begin(3)
    assert float(late.value(3, lambda: torch.nn.Linear(1, 1), lambda number: None).weight.item()) == 1.0
    assert late.value(3, lambda: pytest.fail("computed again"), lambda number: None) == [1.0]
    late.begin(4)
    assert not late


def test_a_number_that_is_another_one_in_the_jobs_state_cannot_be_filled() -> None:
    ours, theirs = EpochValues(), EpochValues()
    for values, number in ((ours, 1.0), (theirs, 2.0)):
        values.begin(0)
        values.value(0, lambda number=number: number, lambda seed: None)
    with pytest.raises(Unfilled, match=r"number 1 is a float here, and another one"):
        theirs.set(ours.get())
