"""Batches that grow (Elan III): the bits of one worker alone, whatever the number of workers; replays; refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elasticd.protocol.batches import read_history, write_history
from elasticd.protocol.errors import UserError
from elasticd.protocol.model import BatchChange, Scaling
from elasticd.worker.data.loading import Loader
from elasticd.worker.data.sampling import OwnOrder, SerialSampler
from elasticd.worker.data.scaling import Growing, rate_at
from elasticd.worker.driver import LocalControl
from elasticd.worker.inband import Part
from elasticd.worker.run import Run
from tests.worker.ranks import ALL, ALONE, Ranks, also

CASES = ["asked_by_the_cluster", *also("adabatch", "within_an_epoch", "adabatch_with_data_workers")]
# Joins and leaves before, in and behind the ramps; one worker misses the step in which the batch has just grown
CHANGING = [[0, [0]], [2, [0, 1, 2]], [5, [0, 1, 2], [2]], [8, [3, 1]], [10, [3, 1, 4, 5]]]


def changes_of(state: str) -> list[dict[str, Any]]:
    step_factor_rate_ramp = json.loads(state)[3]
    return [
        {"step": int(step), "factor": int(factor), "rate": float(rate), "ramp": int(ramp)}
        for step, factor, rate, ramp in step_factor_rate_ramp
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_batch_that_grows_gives_the_bits_of_one_worker_alone(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(f"scaling_cases.{case}", ALONE).states
    assert {change["factor"] for change in changes_of(expected)} >= {2, 4}
    assert set(ranks.outcome(f"scaling_cases.{case}", ALL).states) == {expected}
    assert set(ranks.outcome(f"scaling_cases.{case}", CHANGING).states) == {expected}


@pytest.mark.parametrize("case", CASES)
def test_a_replay_of_a_history_gives_its_bits_on_any_number_of_workers(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(f"scaling_cases.{case}", CHANGING[:1]).states
    replay = {"replay": changes_of(expected)}
    for timetable in ALONE, CHANGING:
        assert set(ranks.train(f"scaling_cases.{case}", timetable, scaling=replay).states) == {expected}
    other = {"replay": [{**change, "step": change["step"] + 1} for change in changes_of(expected)]}
    assert set(ranks.train(f"scaling_cases.{case}", ALONE, scaling=other).states) != {expected}


def test_growth_at_another_number_of_workers_is_replayed_by_one(ranks: Ranks) -> None:
    """The word decides the step; with several workers it may be another one than alone."""
    (found,) = set(ranks.outcome("scaling_cases.asked_by_the_cluster", ALL).states)
    replay = {"replay": changes_of(found)}
    assert ranks.train("scaling_cases.asked_by_the_cluster", ALONE, scaling=replay).states == (found,)


@pytest.mark.cluster
def test_a_factor_of_one_changes_no_bit(ranks: Ranks) -> None:
    (with_permission,) = ranks.outcome("scaling_cases.unchanged", ALONE).states
    (without,) = ranks.outcome("scaling_cases.without_scaling", ALONE).states
    assert with_permission == without
    assert set(ranks.outcome("scaling_cases.unchanged", CHANGING).states) == {without}


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES)
def test_a_job_that_goes_on_from_a_checkpoint_in_a_ramp_ends_with_the_same_bits(
    ranks: Ranks, tmp_path: Path, case: str
) -> None:
    (expected,) = ranks.outcome(f"scaling_cases.{case}", ALONE).states
    ranks.train(f"scaling_cases.{case}", [[0, [0, 1]]], checkpoints=str(tmp_path))
    written = {int(path.stem.rpartition("-")[2]): path for path in tmp_path.glob("*step-*.pt")}
    kept = min((step for step in written if step >= 6), key=lambda step: abs(step - 7))
    for step, path in written.items():
        if step != kept:
            path.unlink()
    again = [[0, [0]], [kept + 2, [0, 1]]]
    assert set(ranks.train(f"scaling_cases.{case}", again, checkpoints=str(tmp_path)).states) == {expected}
    steps = [int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*step-*.pt")]
    assert min(steps) == kept, "the job has begun anew"


# ------------------------------------------------------------------------------------------------ alone, by hand


def run_alone(virtual_workers: int = 2) -> Run:
    return Run(LocalControl.alone(virtual_workers), None, virtual_workers, seed=1)


def test_a_grown_step_is_the_accumulation_of_several_and_its_rate_moves_linearly() -> None:
    """Plain PyTorch: the gradients of k * N micro-batches, one update with the rate of equation 3."""
    n, size, batch, ramp = 2, 22, 3, 4
    x, y = torch.randn(size, 5, generator=torch.Generator().manual_seed(3)), torch.randn(size, 1)
    run = run_alone(n)
    run.scaling("manual", max_factor=3, ramp_steps=ramp)
    model = nn.Linear(5, 1)
    twin = nn.Linear(5, 1)
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    _, optimizer, batches = run.prepare(model, optimizer, (x, y), batch, shuffle=False)
    for epoch in run.epochs(3):
        if epoch == 1:
            run.set_batch(3)
        for one, other in batches:
            nn.functional.mse_loss(model(one), other).backward()
            optimizer.step()
    by_hand = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    edges = [(0, 6), (6, 12), (12, 18), (18, 22)]
    steps = [edges[:1], edges[1:2], edges[2:3], edges[3:], *2 * [edges[:3], edges[3:]]]
    for number, units in enumerate(steps):
        begin, end = units[0][0], units[-1][1]
        done = number - 4
        rate = 1 + min(done, ramp) / ramp * 2 if done >= 0 else 1.0
        by_hand.param_groups[0]["lr"] = 0.05 * rate
        by_hand.zero_grad()
        nn.functional.mse_loss(twin(x[begin:end]), y[begin:end]).backward()
        by_hand.step()
    for mine, hand in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, hand)
    assert optimizer.param_groups[0]["lr"] == 0.05, "the script's own rate has changed"
    assert run.steps_done == len(steps)


class Backwards(Run):
    """Bodies run in the reverse order, as in a rehearsal of `elasticctl check`."""

    def _recipe(self, *arguments: Any) -> Any:
        return replace(super()._recipe(*arguments), backwards=True, overlap=False)


def weights_after(kind: type[Run], n: int, size: int, factor: int) -> list[torch.Tensor]:
    run = kind(LocalControl.alone(n), None, n, seed=1)
    run.scaling("manual", max_factor=factor, ramp_steps=0)
    torch.manual_seed(1)
    model = nn.Linear(5, 1)
    data = torch.randn(size, 5, generator=torch.Generator().manual_seed(3))
    _, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), (data,), 2)
    for _ in run.epochs(2):
        run.set_batch(factor)
        for (x,) in batches:
            model(x).square().mean().backward()
            optimizer.step()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize(("n", "size", "factor"), [(3, 3 * 2 * 7 + 1, 4), (4, 33, 4), (5, 43, 3)])
def test_the_order_of_the_bodies_changes_no_bit_where_some_have_no_sample(n: int, size: int, factor: int) -> None:
    one, other = weights_after(Run, n, size, factor), weights_after(Backwards, n, size, factor)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def growing(n: int, size: int, batch: int, terms: Scaling) -> tuple[Growing, list[tuple[BatchChange, ...]]]:
    told: list[tuple[BatchChange, ...]] = []
    schedule = SerialSampler(OwnOrder(size, 1, shuffle=True), n, batch)
    loader = Loader([*range(size)], schedule, 1, torch.device("cpu"))
    return Growing(schedule, loader, terms, lambda changes, ceiling: told.append(changes)), told


@given(
    n=st.integers(1, 5),
    size=st.integers(1, 60),
    batch=st.integers(1, 4),
    factors=st.lists(st.integers(1, 4), max_size=40),
)
def test_each_epoch_has_each_sample_once_whatever_the_factors(
    n: int, size: int, batch: int, factors: list[int]
) -> None:
    found, _ = growing(n, size, batch, Scaling(max_factor=4))
    found.total_steps(2)
    seen: list[list[int]] = [[], []]
    step = 0
    while found.next_epoch < 2:
        if step < len(factors):
            found.ask(step, factors[step], None)
        found.step_begins(step, None)
        ranges = found.ranges([range(v, v + 1) for v in range(n)])
        assert [m for each in ranges for m in each] == [*range(found.micro_batches)]
        weights = 0.0
        for m in range(found.micro_batches):
            if found.has_samples(step, m):
                place = found.place(m)
                seen[found.epoch(step)] += found._schedule.indices(place.unit, place.virtual_worker)
            weights += found.weight(step, m)
        assert weights == pytest.approx(found.micro_batches)
        found.applied(step)
        step += 1
    assert [sorted(each) for each in seen] == [[*range(size)]] * 2


def test_the_word_s_greatest_factor_counts_from_the_next_step_up_to_the_ceiling() -> None:
    found, told = growing(2, 40, 2, Scaling(hybrid=True, max_factor=4, ramp_steps=10))
    part = Part(0, (0, 1))
    found.want(9)
    found.step_begins(0, None)
    assert found.numbers(part) == (4,)
    assert not found.wants_after(part, found.numbers(part))
    assert found.factor == 1
    found.applied(0)
    assert told[-1] == (BatchChange(step=1, factor=4, rate=4.0, ramp=10),)
    found.step_begins(1, None)
    assert len(found.units) == 4
    assert found.numbers(part)[0] < 0, "a factor that holds is not asked for again"


def test_a_step_that_is_given_up_grows_nothing() -> None:
    found, told = growing(2, 40, 2, Scaling(hybrid=True, max_factor=4))
    found.step_begins(0, None)
    found.wants_after(Part(0, (0,)), [2])
    found.step_begins(0, None)
    found.applied(0)
    assert found.factor == 1
    assert not any(told)


CHANGES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 8), st.floats(0.1, 8.0), st.integers(0, 30)), max_size=6
).map(lambda found: [BatchChange(step=s, factor=f, rate=r, ramp=n) for s, f, r, n in sorted(found, key=lambda c: c[0])])


@given(CHANGES, st.integers(0, 90))
def test_a_rate_stays_between_its_neighbours_and_arrives(changes: list[BatchChange], step: int) -> None:
    rate = rate_at(changes, step)
    begun = [change for change in changes if change.step <= step]
    assert min([1.0, *(change.rate for change in begun)]) - 1e-9 <= rate <= max([1.0, *(c.rate for c in begun)]) + 1e-9
    if begun and step >= begun[-1].step + begun[-1].ramp:
        assert rate == begun[-1].rate
    if begun and begun[-1].ramp and step < begun[-1].step + begun[-1].ramp:
        before = rate_at(changes[: len(begun) - 1], begun[-1].step)
        done = (step - begun[-1].step) / begun[-1].ramp
        assert rate == pytest.approx(before + done * (begun[-1].rate - before))


def test_a_history_survives_its_file() -> None:
    changes = (BatchChange(step=4, factor=2, rate=2.0, ramp=100), BatchChange(step=9, factor=4, rate=0.1, ramp=0))
    assert read_history(write_history(changes)) == changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([{"step": 3, "factor": 0}], "factor 0 is not allowed: 1 to 4096"),
        ([{"step": 3, "factor": 2}, {"step": 3, "factor": 4}], "step 3 is not allowed"),
        ([{"step": 3, "factor": 2, "rate": -1.0}], "rate -1.0 is not allowed: it must be finite"),
        ([{"factor": 2}], "it is no history of batches: .*missing required field `step`"),
        ([{"step": 3, "factor": 2, "ramp": -1}], "ramp -1 is not allowed"),
    ],
)
def test_a_file_that_is_no_history_is_refused_with_a_sentence(changes: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_history(json.dumps(changes).encode())


def test_a_history_in_a_file_is_replayed_outside_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.json"
    path.write_bytes(write_history([BatchChange(step=2, factor=2, rate=2.0, ramp=3)]))
    monkeypatch.setenv("ELASTIC_REPLAY_BATCHES", str(path))
    run = run_alone()
    model = nn.Linear(2, 1)
    _, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(24, 2),), 2)
    factors = []
    for _ in run.epochs(1):
        for (x,) in batches:
            model(x).sum().backward()
            factors.append(run.batch_factor)
            optimizer.step()
    assert factors == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    path.write_text("[7]")
    with pytest.raises(UserError, match=r"ELASTIC_REPLAY_BATCHES=.*history\.json: it is no history"):
        run_alone().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(24, 2),), 2)


# ------------------------------------------------------------------------------------------------------- refusals


class NoRate(torch.optim.Optimizer):
    """An optimizer with no `lr`."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        pass


def prepared(
    terms: dict[str, Any],
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    **options: Any,
) -> Run:
    run = run_alone()
    run.scaling(**terms)
    model = nn.Linear(2, 1)
    made = optimizer(model.parameters())
    if "updates" in options:
        made = [torch.optim.SGD([each], lr=0.1) for each in model.parameters()]  # type: ignore[assignment]
        options["updates"] = {"first": made[0], "second": made[1]}  # type: ignore[index]
    run.prepare(model, made, (torch.ones(16, 2),), 2, **options)
    return run


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (
            lambda: prepared({"max_factor": 5}),
            "factor 5 needs 5 times 4 samples, and an epoch has 16: the greatest factor is 4",
        ),
        (lambda: prepared({"max_factor": 0}), "max_factor is 0; it must be a whole number from 1 to"),
        (lambda: prepared({"max_factor": 1.5}), "max_factor is 1.5; it must be a whole number"),
        (lambda: prepared({"ramp_steps": -1}), "ramp_steps is -1; it must be a whole number from 0"),
        (lambda: prepared({"mode": "weak"}), r"scaling\('weak'\): the mode is 'hybrid' or 'manual'"),
        (lambda: prepared({"max_factor": 2}, NoRate), "NoRate has no `lr` that could grow with it"),
        (
            lambda: prepared({"max_factor": 2}, lambda own: torch.optim.SGD(own, lr=float("inf"))),
            "the learning rate of SGD is inf: it must be finite",
        ),
        (
            lambda: prepared({"max_factor": 2}, lambda own: torch.optim.LBFGS(own, lr=0.1)),
            "the optimizer evaluates the loss of a step several times: these do not work together",
        ),
        (lambda: prepared({"max_factor": 2}, updates={}), "several updates: these do not work together"),
        (lambda: prepared({"max_factor": 2}, gathers=True), "gathers=True: these do not work together"),
        (lambda: prepared({"max_factor": 2}).per_virtual_worker(hidden=None), r"per_virtual_worker\(\) was called"),
        (lambda: next(iter(prepared({"max_factor": 2}).steps())), r"needs a loop over batches, and run.steps\(\)"),
        (lambda: run_alone().set_batch(2), "prepare"),
    ],
)
def test_what_cannot_grow_is_refused_before_training_starts(attempt: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        attempt()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"factor": 5}, r"run.set_batch\(5\): the factor is a whole number from 1 to max_factor, here 4"),
        ({"factor": 0}, "the factor is a whole number from 1"),
        ({"factor": True}, "the factor is a whole number from 1"),
        ({"factor": 2, "rate": float("nan")}, "the rate is a finite number greater than 0"),
        ({"factor": 2, "rate": 0.0}, "the rate is a finite number greater than 0"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(arguments: dict[str, Any], said: str) -> None:
    run = prepared({"max_factor": 4, "mode": "manual"})
    for _ in run.epochs(1):
        with pytest.raises(UserError, match=said):
            run.set_batch(**arguments)
        break


def test_set_batch_needs_the_permission_and_a_place_between_steps() -> None:
    run = run_alone()
    model = nn.Linear(2, 1)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(16, 2),), 2)
    for _ in run.epochs(1):
        with pytest.raises(UserError, match=r"set_batch\(\) was called without run.scaling\(\)"):
            run.set_batch(2)
        break
    run = prepared({"max_factor": 4})
    with pytest.raises(UserError, match=r"run.set_batch\(\) was called outside the loop"):
        run.set_batch(2)


def test_scaling_is_said_once_and_before() -> None:
    run = prepared({"max_factor": 2})
    with pytest.raises(UserError, match=r"scaling\(\) was called twice, or after prepare"):
        run.scaling()
