"""Changes in a loop body that would depend on the number of workers are refused; others are permitted."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.gradients.update import ElasticOptimizer
from elasticd.worker.run import Run

from ..forked import Scripts


class Holder(nn.Linear):
    """With a buffer and a number, which the forward pass changes if `change` is set."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.register_buffer("queue", torch.zeros(2))
        self.register_buffer("later", None)
        self.change: Callable[[Holder], None] = lambda module: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self)
        return super().forward(x)


class Job:
    """A script with a single worker and four virtual workers."""

    def __init__(self, model: nn.Module | None = None, **options: Any) -> None:
        self.run = Run(LocalControl.alone(4), None, 4, seed=1)
        self.model = model if model is not None else Holder()
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = ExponentialLR(self.optimizer, 0.9)
        self.averaged = AveragedModel(self.model)
        self.options = options

    def train(self, before: Any = None, behind: Any = None, between: Any = None, epochs: int = 2) -> None:
        """Each function gets the number of bodies so far."""
        data = torch.randn(24, 2), torch.randn(24, 1)
        _, _, batches = self.run.prepare(self.model, self.optimizer, data, batch_size=2, **self.options)
        bodies = 0
        for _ in self.run.epochs(epochs):
            for x, y in batches:
                if before is not None:
                    before(bodies)
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
                if behind is not None:
                    behind(bodies)
                bodies += 1
            if between is not None:
                between()
        self.run.finish()


# ------------------------------------------------------------------------------------------------------ correct results


def test_what_is_called_in_each_body_acts_once_for_each_step() -> None:
    job = Job()

    def behind(body: int) -> None:
        job.scheduler.step()
        job.averaged.update_parameters(job.model)

    job.train(behind=behind)
    assert job.run.steps_done == 6
    assert job.scheduler.last_epoch == 6
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**6)
    assert int(job.averaged.n_averaged) == 6


def test_a_models_last_buffer_may_be_removed_between_epochs() -> None:
    run, model = Run(LocalControl.alone(2), None, 2, seed=1), nn.Linear(2, 1)
    model.register_buffer("scale", torch.ones(1))
    model, optimizer, batches = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(8, 2),), batch_size=2
    )
    for _ in run.epochs(2):
        for (x,) in batches:
            model(x).sum().backward()
            optimizer.step()
        model._buffers.clear()
    run.finish()
    assert run.steps_done == 4


def test_between_epochs_a_call_acts_at_once() -> None:
    job = Job()
    job.train(between=job.scheduler.step)
    assert job.scheduler.last_epoch == 2


def test_behind_the_step_of_any_body_its_step_counts() -> None:
    job = Job()
    before: list[int] = []
    behind: list[int] = []
    job.train(lambda body: before.append(job.run.steps_done), lambda body: behind.append(job.run.steps_done), epochs=1)
    assert before == [0] * 4 + [1] * 4 + [2] * 4
    assert behind == [1] * 4 + [2] * 4 + [3] * 4


def test_a_rate_set_in_the_body_is_the_one_of_the_update() -> None:
    job = Job()
    used: list[float] = []
    job.options["before_update"] = lambda: used.append(job.optimizer.param_groups[0]["lr"])

    def before(body: int) -> None:
        job.optimizer.param_groups[0]["lr"] = 0.5 ** (job.run.steps_done + 1)

    job.train(before, epochs=1)
    assert used == [0.5, 0.25, 0.125]


def test_the_parts_of_a_scheduler_are_not_stepped_twice() -> None:
    job = Job()
    parts = [LambdaLR(job.optimizer, lambda step: 0.5), ExponentialLR(job.optimizer, 0.9)]
    whole = SequentialLR(job.optimizer, parts, [2])  # type: ignore[arg-type]
    job.train(behind=lambda body: whole.step())
    assert whole.last_epoch == 6
    assert parts[1].last_epoch == 4


# ------------------------------------------------------------------------------------------------------------ refusals


def set_rate(job: Job, value: float) -> None:
    job.optimizer.param_groups[0]["lr"] = value


REFUSED: dict[str, tuple[Callable[[Job], dict[str, Any]], str]] = {
    "a rate from a counter of bodies": (
        lambda job: {"before": lambda body: set_rate(job, 1 / (1 + body))},
        r"param_groups\[0\]\['lr'\] is 1\.0 for one virtual worker and 0\.5 for another in step 0: .*run\.steps_done",
    ),
    "the same behind the step": (
        lambda job: {"behind": lambda body: set_rate(job, 1 / (1 + body))},
        r"\['lr'\] is 1\.0 for one virtual worker and 0\.5 for another after optimizer\.step\(\) in step 0",
    ),
    "a rate in some bodies only": (
        lambda job: {"behind": lambda body: set_rate(job, 0.2) if body == 5 else None},
        r"\['lr'\] is 0\.1 for one virtual worker and 0\.2 for another after optimizer\.step\(\) in step 1",
    ),
    "a group in the body": (
        lambda job: {"before": lambda body: job.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})},
        r"add_param_group\(\) was called in the loop over batches: call it between epochs",
    ),
    "a call in some bodies only": (
        lambda job: {"behind": lambda body: job.scheduler.step() if body % 3 == 0 else None},
        r"scheduler\.step\(\) was called for one virtual worker and not for another in step 0: .*run\.steps_done",
    ),
    "a call with the number of the body": (
        lambda job: {"behind": lambda body: job.scheduler.step(body / 10)},
        r"scheduler\.step\(\) was called with other arguments for one virtual worker than for another.*run\.steps_done",
    ),
    "an average in some bodies only": (
        lambda job: {"behind": lambda body: job.averaged.update_parameters(job.model) if body % 3 == 0 else None},
        r"averaged\.update_parameters\(\) was called for one virtual worker and not for another in step 0",
    ),
    "a scheduler before the step": (
        lambda job: {"before": lambda body: job.scheduler.step()},
        r"scheduler\.step\(\) was called before optimizer\.step\(\) in the loop over batches: call it behind it",
    ),
    "an average before the step": (
        lambda job: {"before": lambda body: job.averaged.update_parameters(job.model)},
        r"averaged\.update_parameters\(\) was called before optimizer\.step\(\)",
    ),
    "an average of something else": (
        lambda job: {"behind": lambda body: job.averaged.update_parameters(Holder())},
        r"averaged\.update_parameters\(other\) was called with a model that prepare\(\) has not got",
    ),
    "a buffer that grows": (
        lambda job: {
            "before": lambda body: setattr(job.model, "change", lambda m: setattr(m, "queue", torch.zeros(3)))
        },
        r"the buffer queue was float32 of shape \[2\] before the loop body and is float32 of shape \[3\] behind it",
    ),
    "a buffer that goes": (
        lambda job: {"before": lambda body: setattr(job.model, "change", lambda m: setattr(m, "queue", None))},
        r"the buffer queue was removed in the loop body",
    ),
    "a buffer that comes": (
        lambda job: {"before": lambda body: setattr(job.model, "change", lambda m: setattr(m, "later", torch.ones(1)))},
        r"the buffer later was added in the loop body",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_body_that_is_not_the_same_for_all_virtual_workers_is_refused(case: str) -> None:
    make, words = REFUSED[case]
    job = Job()
    with pytest.raises(UserError, match=words):
        job.train(**make(job))


def test_a_scheduler_of_the_runtime_s_is_not_the_script_s_to_step() -> None:
    job = Job()
    job.options["scheduler"] = job.scheduler
    with pytest.raises(UserError, match=r"ExponentialLR\.step\(\) was called, but the runtime steps this scheduler"):
        job.train(behind=lambda body: job.scheduler.step())


def test_a_metric_in_the_body_is_refused() -> None:
    job = Job()
    plateau = ReduceLROnPlateau(job.optimizer)
    with pytest.raises(
        UserError, match=r"plateau\.step\(\) with a metric was called in the loop .* run\.mean\(loss=loss\)"
    ):
        job.train(behind=lambda body: plateau.step(1.0))


# -------------------------------------------------------------------------------------------------------- registered values


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ((object, print), r"the registered value 'mine' is a builtins\.object, which cannot be carried along"),
        ((lambda: {}["x"], print), r"register\('mine', …\): its value cannot be read before the loop: KeyError: 'x'"),
        ((1, print), r"register\('mine', get, set\) takes two functions"),
        (
            (lambda: 1,),
            r"register\('mine', …\) takes get and set, or an object with state_dict\(\) and load_state_dict\(\)",
        ),
    ],
)
def test_what_cannot_travel_is_refused_where_it_is_registered(what: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Job().run.register("mine", *what)


def test_a_name_is_registered_once() -> None:
    job = Job()
    job.run.register("mine", lambda: 1, print)
    with pytest.raises(UserError, match=r"register\('mine'\) was called twice"):
        job.run.register("mine", lambda: 1, print)


def test_a_registered_tensor_that_the_body_changes_is_refused() -> None:
    job = Job()
    ema = Holder()
    job.run.register("ema", ema)

    @torch.no_grad()
    def average(body: int) -> None:
        ema.weight.lerp_(job.model.get_parameter("weight"), 0.1)

    with pytest.raises(
        UserError, match=r"'ema' has a tensor that the loop body changes, 4 times .*after_update=function"
    ):
        job.train(behind=average)


# -------------------------------------------------------------------------------------------------------- the objects


def test_the_optimizer_is_still_the_optimizer() -> None:
    job = Job()
    data = torch.randn(24, 2), torch.randn(24, 1)
    _, optimizer, _ = job.run.prepare(job.model, job.optimizer, data, batch_size=2)
    assert optimizer is job.optimizer
    assert isinstance(optimizer, torch.optim.SGD)
    assert isinstance(optimizer, ElasticOptimizer)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(copied) is torch.optim.SGD
        assert copied.state_dict() == optimizer.state_dict()


def test_what_is_followed_can_be_saved_whole_and_its_copies_are_not_followed() -> None:
    job = Job()
    found: list[Any] = []

    def between() -> None:
        file = io.BytesIO()
        torch.save(job.averaged, file)
        file.seek(0)
        found.append(torch.load(file, weights_only=False))
        found.append(copy.deepcopy(job.scheduler))

    job.model = nn.Linear(2, 1)
    job = Job(job.model)
    job.train(between=between, epochs=1)
    averaged, scheduler = found
    assert type(averaged) is AveragedModel
    assert type(scheduler) is ExponentialLR
    assert not any(key.startswith("_act") or key == "step" for key in job.scheduler.state_dict())


# ------------------------------------------------------------------------------------------------------------ the seed

WEIGHTS = """
import sys, warnings, torch
import elasticd as elastic
BEFORE
run = elastic.join(seed=int(sys.argv[1]))
AFTER
data = torch.zeros(8, 4), torch.zeros(8, 1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=2)
print(model.weight.tolist(), [str(each.message) for each in caught if "join" in str(each.message)])
"""


def weights(scripts: Scripts, tmp_path: Path, seed: int, before: str = "", after: str = "") -> str:
    path = tmp_path / "script.py"
    path.write_text(WEIGHTS.replace("BEFORE", before).replace("AFTER", after))
    done = scripts.run(path, str(seed))
    assert done.returncode == 0, done.stderr
    return done.stdout


MAKE = "model = torch.nn.Linear(4, 1)"


def test_a_model_that_is_made_after_joining_has_the_weights_of_the_seed(scripts: Scripts, tmp_path: Path) -> None:
    first, again, other = (weights(scripts, tmp_path, seed, after=MAKE) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert "[]" in first


def test_one_that_was_made_before_with_no_seed_is_warned_of(scripts: Scripts, tmp_path: Path) -> None:
    assert "the model was made before elastic.join()" in weights(scripts, tmp_path, 1, before=MAKE)
    assert "made before" not in weights(scripts, tmp_path, 1, before=f"torch.manual_seed(3); {MAKE}")
