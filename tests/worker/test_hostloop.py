"""Loops of frameworks: one item per global step, with the reported values of all virtual workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run
from tests.worker.ranks import ALL, ALONE, CHANGING, also


@pytest.mark.parametrize("case", ["host", *also("host_until", "items", "clipped")])
def test_all_workers_end_with_the_bits_and_the_log_of_one_worker_alone(ranks: Any, case: str) -> None:
    (expected,) = ranks.outcome(f"host_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"host_cases.{case}", CHANGING).states) == {expected}
    assert set(ranks.outcome(f"host_cases.{case}", ALL).states) == {expected}


@pytest.mark.parametrize("late", [1, 0])
def test_a_host_that_misses_an_epoch_s_last_step_goes_on_with_the_next_epoch(ranks: Any, late: int) -> None:
    (expected,) = ranks.outcome("host_cases.host", ALONE).states
    assert set(ranks.outcome("host_cases.host", [[0, [0, 1]], [6, [0, 1], [late]]]).states) == {expected}


SOMETIMES = [[0, [0, 1]], [5, [0, 1], [1]], [9, [0, 1], [0]], [11, [0, 1], [1]], [23, [0, 1], [0]]]


@pytest.mark.cluster
@pytest.mark.parametrize("timetable", [SOMETIMES, [[0, [0, 1]], [24, [0, 1], [1]]]], ids=["sometimes", "the last"])
@pytest.mark.parametrize("case", ["host_cases.host", "followed_cases.average_in_a_function"])
def test_workers_that_miss_steps_now_and_then_end_with_the_others_bits(
    ranks: Any, case: str, timetable: list[Any]
) -> None:
    (expected,) = ranks.outcome(case, ALONE).states
    assert set(ranks.outcome(case, timetable).states) == {expected}


@pytest.mark.parametrize(("case", "other"), [("host_within_epochs", "host"), ("clipped", "clipped_by_hook")])
def test_two_ways_to_say_the_same_give_the_same_bits(ranks: Any, case: str, other: str) -> None:
    (expected,) = ranks.outcome(f"host_cases.{other}", ALONE).states
    assert set(ranks.outcome(f"host_cases.{case}", CHANGING).states) == {expected}


def test_a_host_trains_the_model_that_an_ordinary_loop_trains(ranks: Any) -> None:
    assert ranks.outcome("host_cases.host", ALONE).norms == ranks.outcome("plain", ALONE).norms


# -- one worker alone


class Data(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Ten rows."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index), 1.0]), torch.tensor([float(index % 3)])


def a_run(virtual_workers: int = 2, rate: float = 0.01, **options: Any) -> tuple[Run, torch.nn.Module, Any, Any]:
    run = Run(LocalControl.alone(virtual_workers), None, virtual_workers, 0)
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return run, *run.prepare(model, optimizer, Data(), batch_size=2, shuffle=False, **options)


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def train(run: Run, model: torch.nn.Module, in_body: Callable[[int], object] = lambda number: None) -> None:
    """One epoch in a framework's loop. in_body: called in each body with its number."""
    run.begin(1)
    for step in run.steps():
        for number, batch in enumerate(step):
            loss_of(model, batch).backward()
            in_body(number)


def test_each_global_step_is_one_item_and_an_epoch_is_one_pass() -> None:
    run, model, optimizer, _ = a_run()
    run.begin(2)
    seen = []
    for epoch in range(2):
        assert len(run.steps()) == 3
        for step in run.steps():
            sizes = []
            for batch in step:
                sizes.append(len(batch[0]))
                loss_of(model, batch).backward()
                optimizer.step()
            seen.append((epoch, step.number, run.steps_done, sizes))
    assert seen == [(s // 3, s, s + 1, [1, 1] if s % 3 == 2 else [2, 2]) for s in range(6)]
    assert run.finished


def test_items_normalize_the_gradient_to_the_mean_over_all_of_them() -> None:
    run, model, _, _ = a_run(rate=1.0, normalize="items")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    rows, targets = zip(*(Data()[index] for index in range(3)), strict=True)
    functional.mse_loss(model(torch.stack(rows)), torch.stack(targets)).backward()
    expected = [p.detach() - p.grad for p in model.parameters()]
    model.zero_grad()
    run.begin(1, max_steps=1)
    for step in run.steps():
        for number, (x, y) in enumerate(step):
            kept = slice(0, 2 - number)  # two samples of the first virtual worker, one of the second
            run.share(items=2 - number)
            functional.mse_loss(model(x[kept]), y[kept], reduction="sum").backward()
        assert run.shared["items"].values == (2.0, 1.0)
    for parameter, wanted, old in zip(model.parameters(), expected, before, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted)
        assert not torch.equal(parameter, old)


def test_shared_values_are_exact_and_their_mean_is_weighted_by_samples() -> None:
    run, model, _, _ = a_run(virtual_workers=4)
    told = [0.1, torch.tensor(1 / 3), torch.tensor(1e-300, dtype=torch.float64), 2**53 - 1]
    run.begin(1)
    means = []
    for step in run.steps():
        for number, batch in enumerate(step):
            run.share(value=told[number], size=len(batch[0]))
            loss_of(model, batch).backward()
        means.append(run.shared["size"].mean)
        if step.number == 0:
            assert run.shared["value"].values == (0.1, float(torch.tensor(1 / 3)), 1e-300, float(2**53 - 1))
    assert means == [2.0, 1.0]  # the short step has one sample for each of two; the others are not asked
    assert run.shared["size"].virtual_workers == (0, 1)


def test_the_applied_step_tells_its_rate_and_its_norm() -> None:
    run, model, optimizer, batches = a_run(rate=0.5, max_grad_norm=math.inf)
    assert run.last_lr == ()
    assert run.grad_norm is None
    for _ in run.epochs(1):
        for batch in batches:
            loss_of(model, batch).backward()
            optimizer.step()
    assert run.last_lr == (0.5,)
    assert run.grad_norm is not None
    assert run.grad_norm > 0


def test_a_loop_body_that_disagrees_with_another_is_told() -> None:
    run, model, _, _ = a_run()
    with pytest.raises(UserError, match=r"share\(loss=\.\.\.\) was called in step 0, but not for virtual worker 1"):
        train(run, model, lambda number: None if number else run.share(loss=1.0))


@pytest.mark.parametrize("asking", [0, 1])
def test_a_limit_that_only_some_bodies_ask_for_is_refused(asking: int) -> None:
    run, model, _, _ = a_run()
    with pytest.raises(UserError, match=r"clip\(\) was not called for one virtual worker, and was called with 1\.0"):
        train(run, model, lambda number: number == asking and run.clip(1.0))


def test_a_step_that_the_host_leaves_out_is_refused() -> None:
    run, _, _, _ = a_run()
    run.begin(1)
    steps = iter(run.steps())
    next(steps)
    with pytest.raises(UserError, match="step 0 was not run to its end"):
        next(steps)


def test_what_belongs_into_a_loop_body_is_refused_elsewhere() -> None:
    run, _, _, _ = a_run()
    run.begin(1)
    with pytest.raises(UserError, match="belongs into the loop body"):
        run.share(loss=1.0)
    with pytest.raises(UserError, match="belongs into the loop body"):
        run.clip(1.0)


def test_wrong_arguments_are_refused() -> None:
    run, model, _, _ = a_run(max_grad_norm=1.0)
    with pytest.raises(UserError, match="at least one epoch"):
        run.begin(0)
    run.begin(1)
    with pytest.raises(UserError, match="called twice"):
        run.begin(1)
    with pytest.raises(UserError, match="say the same in both"):
        next(iter(run.epochs(2)))
    for step in run.steps():
        for batch in step:
            with pytest.raises(
                UserError, match="takes a number or a tensor of one element, not a tensor of 2 elements"
            ):
                run.share(loss=batch[0][0])
            with pytest.raises(UserError, match="max_grad_norm="):
                run.clip(1.0)
            loss_of(model, batch).backward()
        break


def test_items_that_no_body_tells_are_asked_for() -> None:
    run, model, _, _ = a_run(normalize="items")
    with pytest.raises(UserError, match=r"run\.share\(items=\.\.\.\) in every loop body"):
        train(run, model)


def test_a_state_that_is_saved_before_the_functions_that_it_owes_are_called_still_owes_them() -> None:
    run, _, _, _ = a_run()
    trainer = run._trainer
    assert trainer is not None
    held = trainer.held
    held.owes_functions = True
    assert held.header({"applied": 3})["counters"] == {"applied": 3, "owes_functions": 1}
