"""Loop bodies that would not train as on one GPU are refused at once, with the correct line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run


class Script:
    """A script with a single worker and two virtual workers. `body` runs for each batch."""

    def __init__(self, several: bool = False, scaler: bool = False, **options: Any) -> None:
        self.run = Run(LocalControl.alone(2), None, 2, seed=1)
        self.scaler = self.run.scaler(torch.amp.GradScaler("cpu")) if scaler else None
        torch.manual_seed(1)
        self.model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(1, 2)])
        raw = [torch.optim.SGD(part.parameters(), lr=0.1) for part in self.model]
        if "updates" in options:
            options["updates"] = dict(zip(options["updates"], raw, strict=True))
        every = torch.optim.SGD(self.model.parameters(), lr=0.1)
        data = torch.randn(16, 2), torch.randn(16, 1)
        _, self.optimizer, self.batches = self.run.prepare(
            self.model, raw if several else every, data, batch_size=2, **options
        )
        self.number = 0
        self.own_scaler = torch.amp.GradScaler("cpu")  # unknown to the runtime

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = self.model[1](y)
        return torch.nn.functional.mse_loss(self.model[0](x + made), y)

    def train(self, body: Callable[[Script, torch.Tensor, torch.Tensor], None]) -> None:
        for _ in self.run.epochs(2):
            for x, y in self.batches:
                body(self, x, y)
                self.number += 1
        self.run.finish()


def clips(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    torch.nn.utils.clip_grad_norm_(script.model.parameters(), 1.0)
    script.optimizer.step()


def clips_by_value(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    torch.nn.utils.clip_grad_value_(script.model.parameters(), 0.1)
    script.optimizer.step()


def clips_later(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    if script.number >= 4:
        torch.nn.utils.clip_grad_value_(script.model.parameters(), 0.1)
    script.optimizer.step()


def clips_after_two_passes(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    clips_by_value(script, x, y)


def fills_in(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    """For one batch, and for a part that the loss reaches in all the others."""
    if script.number != 4:
        script.loss(x, y).backward()
    else:
        torch.nn.functional.mse_loss(script.model[0](x), y).backward()
        for parameter in script.model[1].parameters():
            parameter.grad = torch.ones_like(parameter)
    script.optimizer.step()


def forgets(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    script.model.zero_grad()
    script.optimizer.step()


def unscales(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    assert script.scaler is not None
    script.scaler.scale(script.loss(x, y)).backward()
    script.scaler.unscale_(script.optimizer)
    script.scaler.step(script.optimizer)


def scales_alone(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.own_scaler.scale(script.loss(x, y)).backward()
    script.own_scaler.step(script.optimizer)
    script.own_scaler.update()


def accumulates(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    (script.loss(x, y) / 4).backward()
    if (script.number + 1) % 4 == 0:
        script.optimizer.step()
        script.optimizer.zero_grad()


def leaves_a_batch_out(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    if script.number != 1:
        script.loss(x, y).backward()
        script.optimizer.step()


def steps_twice(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    for _ in range(2):
        script.loss(x, y).backward()
        script.optimizer.step()


@pytest.mark.parametrize(
    ("body", "options", "said"),
    [
        (clips_by_value, {}, r"To change it otherwise: prepare\(…, before_update=f\)"),
        (clips_later, {}, r"To clip the step's gradient: clip_grad_norm_\(model.parameters\(\), 1.0\)"),
        (clips_after_two_passes, {}, r"prepare\(…, max_grad_norm=1.0\)"),
        (fills_in, {}, "a gradient was changed between backward"),
        (forgets, {}, "a gradient was changed between backward"),
        (unscales, {"scaler": True}, r"without clip_grad_norm_\(\) behind it: leave it out"),
        (scales_alone, {}, r"before prepare\(\): scaler = run\.scaler\(scaler\)"),
        (accumulates, {}, "To accumulate gradients over k batches, .* k times as many virtual workers"),
        (leaves_a_batch_out, {}, r"To leave a batch out, call optimizer.step\(\) without backward\(\)"),
        (steps_twice, {}, r"two steps: prepare\(…, updates="),
    ],
)
def test_a_body_that_means_something_else_here_is_refused(body: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Script(**options).train(body)


def test_an_optimizer_within_the_backward_pass_is_refused() -> None:
    def stepped(parameter: torch.Tensor) -> None:
        parameter.grad = None

    def passes(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        script.loss(x, y).backward()

    script = Script()
    for each in script.model.parameters():
        each.register_post_accumulate_grad_hook(stepped)  # type: ignore[no-untyped-call]
    with pytest.raises(UserError, match=r"\(register_post_accumulate_grad_hook\) has removed its gradient"):
        script.train(passes)


def leaves_out_by_a_step(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    if script.number != 1:
        script.loss(x, y).backward()
    script.optimizer.step()


def passes_twice(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    (script.loss(x, y) / 2).backward()
    (script.loss(x, y) / 2).backward()
    script.optimizer.step()


def clips_the_step(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    script.run.clip(0.05)
    script.optimizer.step()


def once(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    script.optimizer.step()


def test_what_the_messages_advise_works() -> None:
    ends = []
    for body, options in ((once, {}), (passes_twice, {}), (clips, {"overlap": False}), (leaves_out_by_a_step, {})):
        script = Script(**options)
        script.train(body)
        assert script.run.steps_done == 2 * script.run.steps_per_epoch
        ends.append(script.model[0].weight.detach().clone())
    clipping, clipped = Script(), Script(max_grad_norm=0.05)
    clipping.train(clips_the_step)
    clipped.train(once)
    assert torch.equal(clipping.model[0].weight, clipped.model[0].weight)
    assert not torch.equal(ends[0], clipped.model[0].weight)
    torch.testing.assert_close(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[3])


def test_gradients_that_are_computed_without_a_backward_pass_are_those_of_the_micro_batch() -> None:
    """By `torch.autograd.grad` or a formula, as in second-order methods and gradients of single samples."""

    def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        parameters = [*script.model.parameters()]
        for parameter, grad in zip(parameters, torch.autograd.grad(script.loss(x, y), parameters), strict=True):
            parameter.grad = grad
        script.optimizer.step()

    script, plain = Script(), Script()
    script.train(body)
    plain.train(once)
    for own, expected in zip(script.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(own, expected)

    def clipped(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        parameters = [*script.model.parameters()]
        for parameter, grad in zip(parameters, torch.autograd.grad(script.loss(x, y), parameters), strict=True):
            parameter.grad = grad
        torch.nn.utils.clip_grad_norm_(parameters, 0.05)
        script.optimizer.step()

    script, plain = Script(), Script()
    script.train(clipped)
    plain.train(clips_the_step)
    for own, expected in zip(script.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(own, expected)


class Again(torch.optim.SGD):
    """Its update evaluates the loss once more."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        return super().step()


class Needs(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "this optimizer requires a closure"
        return super().step(closure)


@pytest.mark.parametrize("kind", [Again, Needs])
def test_an_optimizer_whose_update_wants_the_loss_again_is_refused_with_the_reason(kind: Any) -> None:
    model, run = nn.Linear(2, 1), Run(LocalControl.alone(2), None, 2, seed=1)
    optimizer: Any
    model, optimizer, batches = run.prepare(model, kind(model.parameters(), lr=0.1), (torch.randn(8, 2),), batch_size=2)

    def closure(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).sum()
        loss.backward()
        return loss

    def loop() -> None:
        for (x,) in (batch for _ in run.epochs(1) for batch in batches):
            optimizer.step(partial(closure, x))

    with pytest.raises(UserError, match=rf"{kind.__name__}, needs the closure in its update.*LBFGS works"):
        loop()


def test_a_second_point_of_each_micro_batch_is_allowed_where_the_old_values_are_copied_back() -> None:
    def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        parameters = [*script.model.parameters()]
        script.loss(x, y).backward()
        old = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=0.05)
        script.optimizer.zero_grad()
        script.loss(x, y).backward()
        with torch.no_grad():
            for parameter, value in zip(parameters, old, strict=True):
                parameter.copy_(value)
        script.optimizer.step()

    script, plain = Script(), Script()
    script.train(body)
    plain.train(once)
    assert script.run.steps_done == plain.run.steps_done
    assert not torch.equal(script.model[0].weight, plain.model[0].weight)


# ----------------------------------------------------------------------------------------------------- two updates


def gan(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    """The usual loop: two halves in one body."""
    first, second = script.optimizer
    first.zero_grad()
    script.loss(x, y).backward()
    first.step()
    second.zero_grad()
    (-script.loss(x, y)).backward()
    second.step()


def gan_by_updates(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    first, second = script.optimizer
    if script.batches.update == "discriminator":
        script.loss(x, y).backward()
        first.step()
    else:
        (-script.loss(x, y)).backward()
        second.step()


def gan_after_many_passes(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    for _ in range(3):
        script.loss(x, y).backward()
    gan(script, x, y)


def wrong_half(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
    script.loss(x, y).backward()
    script.optimizer[1].step()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("body", [gan, gan_after_many_passes])
def test_the_natural_loop_of_a_gan_is_refused_with_the_line_that_is_right(body: Any, overlap: bool) -> None:
    with pytest.raises(
        UserError, match=r"prepare\(…, updates={'discriminator': first, .* `if batches.update == 'discriminator':`"
    ):
        Script(several=True, overlap=overlap).train(body)


def test_optimizers_that_take_turns_are_refused_with_the_line_that_is_right() -> None:
    def alternates(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        script.loss(x, y).backward()
        script.optimizer[script.number % 2].step()

    with pytest.raises(
        UserError, match=r"1 of its 2 optimizers had been stepped, but not number 1 .*prepare\(…, updates="
    ):
        Script(several=True).train(alternates)


def test_an_optimizer_of_another_update_is_not_stepped() -> None:
    with pytest.raises(UserError, match="of the update 'generator' was stepped in the update 'discriminator'"):
        Script(several=True, updates=("discriminator", "generator")).train(wrong_half)


def test_each_update_trains_its_own_parameters_alone_from_the_same_batch() -> None:
    script = Script(several=True, updates=("discriminator", "generator"))
    seen: list[tuple[str, torch.Tensor]] = []

    def body(script: Script, x: torch.Tensor, y: torch.Tensor) -> None:
        before = [parameter.detach().clone() for parameter in script.model.parameters()]
        seen.append((script.batches.update, x))
        gan_by_updates(script, x, y)
        changed = [not torch.equal(*pair) for pair in zip(before, script.model.parameters(), strict=True)]
        last_of_its_step = script.number % 2 == 1
        first = script.number % 4 < 2
        assert changed == [last_of_its_step and first] * 2 + [last_of_its_step and not first] * 2

    script.train(body)
    assert [name for name, _ in seen[:4]] == ["discriminator", "discriminator", "generator", "generator"]
    assert torch.equal(seen[0][1], seen[2][1])
    assert torch.equal(seen[1][1], seen[3][1])
    assert script.run.steps_done == 2 * script.run.steps_per_epoch == 16


def plain_gan() -> list[torch.Tensor]:
    """The same on one GPU without the runtime: the usual loop over whole global batches."""
    script = Script(several=True, updates=("discriminator", "generator"))
    schedule: Any = script.run._trainer._sampler  # type: ignore[union-attr]
    loader: Any = script.run._trainer.stepping._loader  # type: ignore[union-attr]
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in script.model)
    for step in range(0, 2 * schedule.steps_per_epoch, 2):
        x, y = (torch.cat(part) for part in zip(*(loader.batch(step, v) for v in range(2)), strict=True))
        for optimizer, sign in ((first, 1), (second, -1)):
            script.model.zero_grad()
            (sign * script.loss(x, y)).backward()
            optimizer.step()
    return [parameter.detach() for parameter in script.model.parameters()]


def test_two_updates_give_what_the_natural_loop_gives_on_one_gpu() -> None:
    script = Script(several=True, updates=("discriminator", "generator"))
    script.train(gan_by_updates)
    for own, expected in zip(script.model.parameters(), plain_gan(), strict=True):
        torch.testing.assert_close(own.detach(), expected)


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        (("a", "b"), "updates= takes a mapping from a name to the optimizer"),
        ({"a": torch.optim.SGD([torch.zeros(1)], lr=0.1)}, "updates= has for 'a' an optimizer that prepare"),
    ],
)
def test_updates_that_cannot_be_meant_are_refused(updates: Any, said: str) -> None:
    model = nn.Linear(2, 1)
    run = Run(LocalControl.alone(2), None, 2, seed=1)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    with pytest.raises(UserError, match=said):
        run.prepare(model, optimizers, (torch.zeros(4, 2),), batch_size=1, updates=updates)
    with pytest.raises(UserError, match="updates= never steps optimizer 1, SGD"):
        run.prepare(model, optimizers, (torch.zeros(4, 2),), batch_size=1, updates={"a": optimizers[0]})
