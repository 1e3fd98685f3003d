"""torch.optim.LBFGS evaluates the loss of a step several times: equal bits for any number of workers, and across resizes."""

from __future__ import annotations

import atexit
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run
from tests.worker.ranks import ALL, ALONE, CHANGING, also

# At an epoch's end, whose last step is short: workers that join in it, and in the first of the next epoch.
AT_THE_END = [[0, [0, 1]], [5, [0, 2, 1]], [11, [3, 2, 1]], [17, [3, 1]], [18, [4, 3, 1]], [20, [3, 4]]]
MISSED = [[0, [0, 1, 2]], [5, [1, 0, 2], [0]], [11, [1, 2, 3], [1]]]
# In the middle of a step, after an evaluation with other parameters than before; also with a joiner in it.
BROKEN = [
    [0, [0, 1, 2]],
    [4, [2, 1, 0], [], 1],
    [6, [2, 1]],
    [7, [2, 1, 3], [], 0],
    [7, [2, 3, 1, 4], [3], 1],
    [12, [3, 1, 4]],
]


TIMETABLES = [CHANGING, MISSED, BROKEN, *(pytest.param(each, marks=pytest.mark.cluster) for each in (ALL, AT_THE_END))]


@pytest.mark.parametrize(
    "case", ["wolfe", *also("natural", "shards", "fixed_step", "dropout", "dropout_wolfe", "normalized")]
)
@pytest.mark.parametrize("timetable", TIMETABLES, ids=["changing", "missed", "broken", "all", "at the end"])
def test_all_workers_end_with_the_bits_of_one_worker_alone(ranks: Any, case: str, timetable: list[Any]) -> None:
    (expected,) = ranks.outcome(f"lbfgs_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"lbfgs_cases.{case}", timetable).states) == {expected}


@pytest.mark.cluster
def test_a_model_saved_from_a_closure_is_that_of_the_last_step(ranks: Any) -> None:
    (expected,) = ranks.outcome("lbfgs_cases.fixed_step", ALONE).states
    for timetable in (ALONE, CHANGING):
        assert set(ranks.outcome("lbfgs_cases.saved_in_the_closure", timetable).states) == {expected}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe"}, {"max_iter": 1}], ids=str)
def test_with_one_virtual_worker_the_bits_are_those_of_torch_itself(options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(60, 3, generator=generator), torch.randn(60, 1, generator=generator)
    options = {"lr": 0.5, "max_iter": 7, "history_size": 4, **options}
    theirs = network()
    plain = torch.optim.LBFGS(theirs.parameters(), **options)
    losses: list[float] = []
    for _ in range(3):
        for begin in range(0, 60, 16):  # the last batch is short

            def closure() -> torch.Tensor:
                plain.zero_grad()
                part = slice(begin, begin + 16)  # noqa: B023
                loss = nn.functional.mse_loss(theirs(x[part]), y[part])
                loss.backward()
                return loss

            losses.append(plain.step(closure).item())

    run = Run(LocalControl.alone(1), None, 1, seed=1)
    ours = network()
    raw = torch.optim.LBFGS(ours.parameters(), **options)
    model, optimizer, batches = run.prepare(ours, raw, (x, y), batch_size=16, shuffle=False)
    returned: dict[int, float] = {}
    for _ in run.epochs(3):
        for a, b in batches:

            def evaluated() -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(a), b)  # noqa: B023
                loss.backward()
                return loss

            step = run.steps_done
            returned[step] = optimizer.step(evaluated).item()
    assert [returned[step] for step in sorted(returned)] == losses
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name
    assert str(plain.state_dict()) == str(raw.state_dict())


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("options_that_differ", r"param_groups\[0\]\['max_iter'\] is 4 on worker 0 and 5 on worker 1 in step 2"),
        ("states_that_differ:none", "the workers do not agree whether LBFGS evaluates the loss of step . once more"),
    ],
)
def test_workers_that_would_evaluate_more_or_less_often_all_end_with_the_reason(
    ranks: Any, case: str, words: str
) -> None:
    first, second = ranks.outcome(f"lbfgs_cases.{case}", [[0, [0, 1]]]).states
    assert first == second, "parameters of the last step, or the reason"
    assert re.search(words, json.loads(first)[1]), first


# ----------------------------------------------------------------------------------------------------------- refusals


class Counting(nn.Linear):
    """Counts forward passes in its extra state."""

    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return self.count

    def set_extra_state(self, state: Any) -> None:
        self.count = state


class Script:
    """A script with a single worker and two virtual workers, three steps per epoch."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.run = Run(LocalControl.alone(2), None, 2, seed=1)
        torch.manual_seed(1)
        model = model or nn.Linear(2, 1)
        raw = torch.optim.LBFGS(model.parameters(), max_iter=4)
        data = torch.randn(12, 2), torch.randn(12, 1)
        self.model, self.optimizer, self.batches = self.run.prepare(model, raw, data, batch_size=2)
        self.bodies = 0

    def train(self, body: Callable[[Script, Any], None], epochs: int = 1) -> None:
        for _ in self.run.epochs(epochs):
            for batch in self.batches:
                self.bodies += 1
                body(self, batch)
        self.run.finish()

    def step(self, batch: Any, *beside: Callable[[], Any]) -> torch.Tensor:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
            loss.backward()
            for each in beside:
                each()
            return loss

        return torch.as_tensor(self.optimizer.step(closure))


def without_a_closure(script: Script, batch: Any) -> None:
    nn.functional.mse_loss(script.model(batch[0]), batch[1]).backward()
    script.optimizer.step()


def without_a_loss(script: Script, batch: Any) -> None:
    script.optimizer.step(lambda: nn.functional.mse_loss(script.model(batch[0]), batch[1]).backward())


def clips(script: Script, batch: Any) -> None:
    script.step(batch, lambda: script.run.clip(1.0))


def clips_by_torch(script: Script, batch: Any) -> None:
    script.step(batch, lambda: torch.nn.utils.clip_grad_norm_(script.model.parameters(), 1.0))


def steps_twice(script: Script, batch: Any) -> None:
    script.step(batch)
    script.step(batch)


def changes_parameters(script: Script, batch: Any) -> None:
    with torch.no_grad():
        script.model.weight.clamp_(-0.1, 0.1)
    script.step(batch)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (without_a_closure, r"called without a closure, of which LBFGS has the loss: step\(closure\)"),
        (without_a_loss, "has returned a NoneType: it must return the loss"),
        (clips, r"run.clip\(\) was called, and the optimizer is LBFGS: a clipped gradient"),
        (clips_by_torch, r"clip_grad_norm_\(\) was called, and the optimizer is LBFGS: a clipped gradient"),
        (steps_twice, r"optimizer.step\(\) was called twice for one batch"),
        (changes_parameters, "the parameter weight was changed in the loop body"),
    ],
)
def test_what_cannot_be_meant_is_refused(body: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Script().train(body)


def test_extra_state_that_a_forward_pass_changes_is_refused() -> None:
    with pytest.raises(UserError, match="has changed the extra state of Counting, and the optimizer is LBFGS"):
        Script(Counting(2, 1)).train(lambda script, batch: script.step(batch))  # type: ignore[arg-type, return-value]


def test_a_loop_that_has_no_closures_is_refused() -> None:
    script = Script()
    script.run.begin(1)
    with pytest.raises(UserError, match=r"run.steps\(\) was called, and the optimizer is LBFGS"):
        next(iter(script.run.steps()))


def test_a_scaler_is_refused() -> None:
    run = Run(LocalControl.alone(1), None, 1, seed=1)
    run.scaler(torch.amp.GradScaler("cpu"))
    model = nn.Linear(2, 1)
    with pytest.raises(UserError, match=r"run.scaler\(\) was given, and the optimizer is LBFGS"):
        run.prepare(model, torch.optim.LBFGS(model.parameters()), (torch.zeros(2, 2), torch.zeros(2, 1)), 1)


def test_a_loop_left_between_two_evaluations_is_refused() -> None:
    script = Script()

    def leave() -> None:
        for _ in script.run.epochs(1):
            for batch in script.batches:
                script.step(batch)
                script.bodies += 1
                if script.bodies == 2:  # all of the first evaluation
                    break

    with pytest.raises(UserError, match="was left in the middle of step 1, between two evaluations of its loss"):
        leave()
    atexit.unregister(script.run._at_exit)  # it would end this process with the reason


def test_a_loop_left_at_the_top_of_its_body_ends_with_the_step_before() -> None:
    script = Script()
    for _ in script.run.epochs(1):
        for batch in script.batches:
            if script.run.steps_done == 2:
                break
            script.step(batch)
    script.run.finish()
    assert script.run.steps_done == 2


def test_a_body_runs_once_for_each_evaluation_and_its_step_counts_once() -> None:
    script, seen = Script(), []
    begun: list[list[float]] = []

    def body(script: Script, batch: Any) -> None:
        begun.append(script.model.weight.tolist())
        steps = script.run.steps_done
        loss = float(script.step(batch))
        seen.append((steps, script.run.steps_done, loss))

    script.train(body)
    (state,) = script.optimizer.state.values()
    assert len(seen) == script.bodies == 2 * state["func_evals"] > 2 * 2 * 3
    assert {(before, behind) for before, behind, _ in seen} == {(0, 1), (1, 2), (2, 3)}
    assert len({loss for *_, loss in seen}) == 2 * 3, "each body returns the loss before the update, as torch does"
    assert len({str(weights) for weights in begun}) == 3, "outside of the closure the parameters are those of the step"
