"""`clip_grad_norm_` in a loop body clips the gradient of the step, like `run.clip`; elsewhere it is torch's function."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_  # before any job begins, as in scripts

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run
from tests.worker.ranks import ALL, ALONE, CHANGING, Ranks, also

BOUND = 0.05


@pytest.mark.parametrize("timetable", [ALONE, CHANGING, *also([[0, [0, 1]]], [[0, [0, 1, 2]]])], ids=str)
def test_torch_s_function_gives_the_bits_of_the_runtime_s(ranks: Ranks, timetable: list[Any]) -> None:
    (expected,) = ranks.outcome("clip_cases.by_the_runtime", ALONE).states
    assert set(ranks.outcome("clip_cases.by_torch", timetable).states) == {expected}


@pytest.mark.parametrize("case", ["with_norms", "scaled", *also("from_a_later_step", "gathered")])
def test_the_returned_norms_and_the_scale_are_those_of_one_worker_alone(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(f"clip_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"clip_cases.{case}", CHANGING).states) == {expected}
    assert set(ranks.outcome(f"clip_cases.{case}", ALL).states) == {expected}


class Backwards(Run):
    """Bodies run in the reverse order, as in a rehearsal of `elasticctl check`."""

    def _recipe(self, *arguments: Any) -> Any:
        return replace(super()._recipe(*arguments), backwards=True, overlap=False)


class Script:
    """A script with a single worker. `body` runs for each batch."""

    def __init__(
        self,
        virtual_workers: int = 2,
        optimizers: int = 1,
        scaler: dict[str, Any] | None = None,
        kind: type[Run] = Run,
        **options: Any,
    ) -> None:
        self.run = kind(LocalControl.alone(virtual_workers), None, virtual_workers, seed=1)
        self.scaler: Any = None if scaler is None else self.run.scaler(torch.amp.GradScaler("cpu", **scaler))
        torch.manual_seed(1)
        self.model = nn.ModuleList([nn.Linear(3, 512), nn.Linear(512, 1024), nn.Linear(1024, 1)])
        self.data = torch.randn(16, 3), torch.randn(16, 1)
        parts: list[Any] = [self.model] if optimizers == 1 else [self.model[:2], self.model[2]]
        raw = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
        if "updates" in options:
            options["updates"] = dict(zip(options["updates"], raw, strict=True))
        _, _, self.batches = self.run.prepare(self.model, raw, self.data, batch_size=2, **options)
        self.optimizers = raw
        self.number = 0

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second, third = self.model[:3]
        return nn.functional.mse_loss(third(torch.tanh(second(torch.tanh(first(x))))), y)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def train(self, body: Body) -> list[torch.Tensor]:
        for _ in self.run.epochs(2):
            for x, y in self.batches:
                body(self, x, y)
                self.number += 1
        self.run.finish()
        return [each.detach().clone() for each in self.model.parameters()]


Body = Callable[[Script, torch.Tensor, torch.Tensor], Any]


def clipped(clip: Callable[[Script], Any]) -> Body:
    def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        script.loss(x, y).backward()
        clip(script)
        script.step()

    return body


def expected(**options: Any) -> list[torch.Tensor]:
    return Script(**options).train(clipped(lambda script: script.run.clip(BOUND)))


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def deprecated(parameters: Any, max_norm: float) -> torch.Tensor:
    with pytest.warns(FutureWarning):
        return nn.utils.clip_grad_norm(parameters, max_norm)


SPELLINGS: dict[str, Callable[[Script], Any]] = {
    "by its path": lambda script: torch.nn.utils.clip_grad_norm_(script.model.parameters(), BOUND),
    "by name, imported before": lambda script: clip_grad_norm_(script.model.parameters(), BOUND),
    "by its module": lambda script: clip_grad.clip_grad_norm_(script.model.parameters(), max_norm=BOUND),
    "the deprecated one": lambda script: deprecated(script.model.parameters(), BOUND),
    "all by name": lambda script: clip_grad_norm_(
        parameters=script.model.parameters(), max_norm=BOUND, norm_type=2, error_if_nonfinite=True, foreach=False
    ),
    "a list": lambda script: clip_grad_norm_([*script.model.parameters()], BOUND),
    "a filter": lambda script: clip_grad_norm_(filter(lambda p: p.requires_grad, script.model.parameters()), BOUND),
    "those with a gradient": lambda script: clip_grad_norm_(
        [p for p in script.model.parameters() if p.grad is not None], BOUND
    ),
    "a group": lambda script: clip_grad_norm_(script.optimizers[0].param_groups[0]["params"], BOUND),
    "a chain": lambda script: clip_grad_norm_(itertools.chain(*(part.parameters() for part in script.model)), BOUND),
    "a tensor as bound": lambda script: clip_grad_norm_(
        script.model.parameters(), torch.tensor(BOUND, dtype=torch.float64)
    ),
    "text as norm": lambda script: clip_grad_norm_(script.model.parameters(), BOUND, "2"),
    "twice the same": lambda script: [clip_grad_norm_(script.model.parameters(), BOUND) for _ in range(2)],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_clips_the_gradient_of_the_step(spelling: str) -> None:
    assert equal(Script().train(clipped(SPELLINGS[spelling])), expected())
    assert not equal(expected(), Script().train(clipped(lambda script: None)))


@pytest.mark.parametrize(
    ("options", "prepared"),
    [
        ({"virtual_workers": 1}, {}),
        ({"optimizers": 2}, {}),
        ({"virtual_workers": 3}, {"drop_last": True}),
        ({}, {"before_update": lambda: None}),
    ],
    ids=["one virtual worker", "two optimizers", "three virtual workers", "a function"],
)
def test_it_clips_in_jobs_of_all_kinds(options: dict[str, Any], prepared: dict[str, Any]) -> None:
    ends = Script(**options, **prepared).train(clipped(SPELLINGS["by its path"]))
    assert equal(ends, expected(**options, **prepared))


def test_it_clips_in_a_rehearsal_with_bodies_in_the_reverse_order() -> None:
    assert equal(Script(kind=Backwards).train(clipped(SPELLINGS["by its path"])), expected())


def test_one_virtual_worker_ends_with_the_bits_of_a_script_without_the_runtime() -> None:
    script = Script(virtual_workers=1, shuffle=False)
    raw = nn.Sequential(nn.Linear(3, 512), nn.Tanh(), nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 1))
    raw.load_state_dict(dict(zip(raw.state_dict(), script.model.state_dict().values(), strict=True)))
    optimizer = torch.optim.SGD(raw.parameters(), lr=0.1)
    seen, norms = list[float](), list[float]()
    ends = script.train(clipped(lambda script: seen.append(float(SPELLINGS["by its path"](script)))))
    for _, at in itertools.product(range(2), range(0, 16, 2)):
        optimizer.zero_grad()
        nn.functional.mse_loss(raw(script.data[0][at : at + 2]), script.data[1][at : at + 2]).backward()
        norms.append(float(clip_grad_norm_(raw.parameters(), BOUND)))
        optimizer.step()
    assert equal(ends, [*raw.parameters()])
    assert seen == norms


def test_parameters_without_a_gradient_and_frozen_ones_do_not_count() -> None:
    def prepared() -> Script:
        script = Script()
        script.model[0].requires_grad_(False)
        script.model.append(nn.Linear(2, 2))  # which no loss reaches, and no optimizer has
        return script

    ends = prepared().train(clipped(SPELLINGS["by its path"]))
    assert equal(ends, prepared().train(clipped(lambda script: script.run.clip(BOUND))))


def test_one_of_two_updates_clips_the_parameters_that_it_trains() -> None:
    def body(clip: Callable[[Script, Any], Any]) -> Body:
        def of(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
            script.loss(x, y).backward()
            first = script.batches.update == "one"
            clip(script, script.model[:2] if first else script.model[2])
            script.optimizers[0 if first else 1].step()

        return of

    options: Any = {"optimizers": 2, "updates": ("one", "two")}
    ends = Script(**options).train(body(lambda script, part: clip_grad_norm_(part.parameters(), BOUND)))
    assert equal(ends, Script(**options).train(body(lambda script, part: script.run.clip(BOUND))))
    assert not equal(ends, Script(**options).train(body(lambda script, part: None)))


def test_a_closure_may_clip() -> None:
    def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            loss = script.loss(x, y)
            loss.backward()
            clip_grad_norm_(script.model.parameters(), BOUND)
            return loss

        script.optimizers[0].step(closure)

    assert equal(Script().train(body), expected())


def test_it_clips_what_several_backward_passes_have_computed() -> None:
    def body(clip: Callable[[Script], Any]) -> Body:
        def of(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
            (script.loss(x, y) / 2).backward()
            clipped(clip)(script, x, y)

        return of

    ends = Script().train(body(SPELLINGS["by its path"]))
    assert equal(ends, Script().train(body(lambda script: script.run.clip(BOUND))))


def test_a_host_s_loop_may_clip() -> None:
    def train(clip: Callable[[Script], Any]) -> list[torch.Tensor]:
        script = Script()
        for _ in script.run.epochs(2):
            for step in script.run.steps():
                for x, y in step:
                    script.loss(x, y).backward()
                    clip(script)
        return [*script.model.parameters()]

    assert equal(train(SPELLINGS["by its path"]), expected())


# -- the result


@pytest.mark.parametrize("virtual_workers", [1, 2, 4])
def test_it_returns_the_norm_of_the_micro_batch_s_gradient(virtual_workers: int) -> None:
    norms: list[tuple[float, float]] = []

    def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        parameters = [*script.model.parameters()]
        wanted = torch.autograd.grad(script.loss(x, y), parameters)
        script.loss(x, y).backward()
        norm = clip_grad_norm_(parameters, BOUND)
        norms.append((float(norm), float(torch.cat([each.double().flatten() for each in wanted]).norm())))
        script.step()

    Script(virtual_workers).train(body)
    assert len(norms) == 16
    for norm, wanted in norms:
        assert norm == pytest.approx(wanted, rel=1e-5)


def test_norms_of_a_scaled_loss_are_unscaled() -> None:
    def norms(scaler: dict[str, Any] | None) -> list[float]:
        found: list[float] = []

        def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
            loss = script.loss(x, y)
            (loss if scaler is None else script.scaler.scale(loss)).backward()
            if scaler is not None:
                script.scaler.unscale_(script.optimizers[0])
            found.append(float(clip_grad_norm_(script.model.parameters(), BOUND)))
            script.step()

        Script(scaler=scaler).train(body)
        return found

    plain = norms(None)
    assert norms({"init_scale": 1024.0}) == plain
    assert norms({"enabled": False}) == plain


def test_a_norm_that_is_not_finite_is_an_error_if_the_script_wants_one() -> None:
    def body(fails: bool) -> Body:
        def of(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
            (script.loss(x, y) * (math.inf if script.number == 5 else 1.0)).backward()
            clip_grad_norm_(script.model.parameters(), BOUND, error_if_nonfinite=fails)
            script.step()

        return of

    Script().train(body(False))
    with pytest.raises(RuntimeError, match="non-finite"):
        Script().train(body(True))


LATE = """
import torch
import helper
import elasticd as elastic

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (torch.randn(24, 2),), batch_size=2)
for epoch in run.epochs(1):
    for (x,) in batches:
        model(x).square().mean().backward()
        if run.steps_done >= int(os.environ["FROM"]):
            helper.clip(model)
        optimizer.step()
print("trained")
"""


@pytest.mark.parametrize(("begins", "said"), [(0, "trained"), (4, "for the first time after steps without it")])
def test_a_library_may_clip_from_the_first_step_on(tmp_path: Path, begins: int, said: str) -> None:
    """What the micro-batch's norm is, is not known in a later one."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "helper.py").write_text(
        "import torch\n\ndef clip(model):\n    return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
    )
    (tmp_path / "train.py").write_text(f"import os{LATE}")
    environment = {**os.environ, "PYTHONPATH": str(library), "ELASTIC_VIRTUAL_WORKERS": "2", "FROM": str(begins)}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert said in done.stdout + done.stderr


# -- torch's own function


def test_outside_loop_bodies_it_is_torch_s_own() -> None:
    found: list[float] = []
    script = Script()

    def measured() -> None:
        found.append(float(clip_grad_norm_(script.model.parameters(), BOUND)))
        after = torch.cat([each.grad.flatten() for each in script.model.parameters() if each.grad is not None]).norm()
        assert float(after) == pytest.approx(min(found[-1], BOUND), rel=1e-4)

    own = Script(before_update=measured)
    script = own
    other = nn.Linear(2, 2)

    @own.run.every(steps=1)
    def between() -> None:
        other(torch.ones(1, 2)).sum().backward()
        assert float(clip_grad_norm_(other.parameters(), 0.1)) > 0.1
        assert other.weight.grad is not None
        assert float(other.weight.grad.norm()) < 0.1

    ends = own.train(clipped(lambda script: None))
    assert equal(ends, expected())
    assert len(found) == 8
    assert inner().__code__.co_filename == clip_grad.__file__


def inner() -> Any:
    return clip_grad_norm_.__wrapped__  # type: ignore[attr-defined]


def test_in_a_loop_body_it_is_torch_s_own_for_tensors_that_the_job_does_not_train() -> None:
    def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        fast = [each.detach().clone().requires_grad_() for each in script.model[0].parameters()]
        (x @ fast[0].T + fast[1]).square().sum().backward()
        norm = clip_grad_norm_(fast, BOUND, norm_type=math.inf)
        assert float(norm) > BOUND
        assert max(float(each.grad.abs().max()) for each in fast if each.grad is not None) < 1.001 * BOUND
        clipped(SPELLINGS["by its path"])(script, x, y)
        assert float(clip_grad_norm_(script.model.parameters(), BOUND)) == 0  # behind the step no gradient is left

    assert equal(Script().train(body), expected())


def test_after_a_loop_that_is_left_in_a_body_it_is_torch_s_own() -> None:
    script = Script()
    for _ in script.run.epochs(1):
        for x, y in script.batches:
            script.loss(x, y).backward()
            break
        break
    x, y = script.data
    script.loss(1000 * x, 1000 * y).backward()
    assert float(clip_grad_norm_(script.model.parameters(), BOUND, norm_type=math.inf)) > BOUND
    assert (
        max(float(each.grad.abs().max()) for each in script.model.parameters() if each.grad is not None) < 1.001 * BOUND
    )


def test_without_overlap_each_micro_batch_is_clipped() -> None:
    norms: list[float] = []

    def clip(script: Script) -> None:
        clip_grad_norm_(script.model[0].parameters(), BOUND, norm_type=1.0)
        norms.append(
            float(sum(each.grad.abs().sum() for each in script.model[0].parameters() if each.grad is not None))
        )

    Script(overlap=False).train(clipped(clip))
    assert max(norms) == pytest.approx(BOUND, rel=1e-4)


# -- refusals


def clips_between_two_passes(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    for _ in range(2):
        script.loss(x, y).backward()
        clip_grad_norm_(script.model.parameters(), BOUND)
    script.step()


def clips_before_the_pass(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    clip_grad_norm_(script.model.parameters(), BOUND)
    script.loss(x, y).backward()
    script.step()


def clips_single_samples(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    """As differentially private training by hand, with micro-batches of one sample."""
    sums = [torch.zeros_like(each) for each in script.model.parameters()]
    for one, target in zip(x.split(1), y.split(1), strict=True):
        script.model.zero_grad()
        script.loss(one, target).backward()
        clip_grad_norm_(script.model.parameters(), BOUND)
        for total, each in zip(sums, script.model.parameters(), strict=True):
            total += each.grad if each.grad is not None else 0.0
    for total, each in zip(sums, script.model.parameters(), strict=True):
        each.grad = total
    script.step()


def clips_and_replaces(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    clip_grad_norm_(script.model.parameters(), BOUND)
    for each in script.model.parameters():
        each.grad = torch.zeros_like(each)
    script.step()


def adds_noise(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    clip_grad_norm_(script.model.parameters(), BOUND)
    for each in script.model.parameters():
        assert each.grad is not None
        each.grad.add_(0.01)
    script.step()


def clips_some(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    if script.number % 2:
        clip_grad_norm_(script.model.parameters(), BOUND)
    script.step()


BESIDE = nn.Linear(1, 1)


def clips_more(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    (script.loss(x, y) + BESIDE(y).mean()).backward()
    clip_grad_norm_([*script.model.parameters(), *BESIDE.parameters()], BOUND)
    script.step()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (clipped(lambda s: clip_grad_norm_(s.model.parameters(), 1.0, "inf")), r"norm_type='inf'.*before_update=f"),
        (clipped(lambda s: clip_grad_norm_(s.model.parameters(), 1.0, 1)), r"norm_type=1: .*before_update=f"),
        (
            clipped(lambda s: clip_grad_norm_(s.model[:2].parameters(), 1.0)),
            r"a part of the parameters, without 2\.(weight|bias).*before_update=f",
        ),
        (clipped(lambda s: clip_grad_norm_(s.model[0].weight, 1.0)), "a part of the parameters"),
        (
            clipped(lambda s: [clip_grad_norm_(part.parameters(), 1.0) for part in s.model]),
            "a part of the parameters",
        ),
        (
            clipped(lambda s: [clip_grad_norm_(s.model.parameters(), each) for each in (1.0, 0.5)]),
            r"clips the gradient to 1\.0 and to 0\.5: .*before_update=f",
        ),
        (clipped(lambda s: clip_grad_norm_([*s.model.parameters()] * 2, 1.0)), "a parameter twice"),
        (clipped(lambda s: clip_grad_norm_(s.model.parameters(), 0.0)), "must be above 0"),
        (clips_more, "with another parameter, which has a gradient, and which the step does not train"),
        (clips_between_two_passes, r"behind the last backward\(\)"),
        (clips_before_the_pass, r"behind the last backward\(\)"),
        (clips_single_samples, r"clipped: prepare\(…, overlap=False\)"),
        (clips_and_replaces, r"behind the last backward\(\)|a gradient was changed"),
        (adds_noise, "a gradient was changed between backward"),
        (clips_some, r"clip_grad_norm_\(\) or run.clip\(\) was not called for one virtual worker"),
        (
            clipped(lambda s: clip_grad_norm_(s.model.parameters(), 1.0 + s.number)),
            r"clip\(\) was called with 1\.0 .*derive it from run\.steps_done",
        ),
        (clipped(lambda s: nn.utils.clip_grad_value_(s.model.parameters(), 0.01)), r"before_update=f"),
    ],
)
def test_a_call_that_means_something_else_is_refused_with_the_remedy(body: Body, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Script().train(body)


@pytest.mark.parametrize(
    ("clip", "options", "said"),
    [
        (SPELLINGS["by its path"], {"max_grad_norm": 1.0}, "max_grad_norm=, which does the same"),
        (SPELLINGS["by its path"], {"scaler": {}}, r"without scaler\.unscale_\(optimizer\) before it"),
        (
            lambda s: s.scaler.unscale_(s.optimizers[0]),
            {"scaler": {}},
            r"unscale_\(\) was called without clip_grad_norm_",
        ),
        (lambda s: s.scaler.unscale_(s.model), {"scaler": {}}, r"takes the optimizer that prepare\(\) returned"),
    ],
)
def test_calls_that_do_not_fit_the_job_are_refused(clip: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Script(**options).train(clipped(clip))


def test_the_advice_for_parts_and_other_norms_works() -> None:
    script: Script

    def clip() -> None:
        clip_grad_norm_(script.model[0].parameters(), BOUND, "inf")
        clip_grad_norm_(script.model[1].parameters(), BOUND)

    script = Script(before_update=clip)
    assert not equal(script.train(clipped(lambda script: None)), Script().train(clipped(lambda script: None)))
