"""Changes in a loop body that other workers would not get are refused at once, or cause a warning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from elasticd.protocol.errors import UserError
from elasticd.worker.comparison import mutation_guard
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2


class Script:
    """A training with two virtual workers, and an object beside it."""

    def __init__(self, model: nn.Module | None = None) -> None:
        torch.manual_seed(2)
        self.model = model or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        self.run = Run(LocalControl.alone(2), None, 2, seed=1)

    def train(
        self,
        behind: Callable[[], None] = lambda: None,
        before: Callable[[], None] = lambda: None,
        between: Callable[[], None] = lambda: None,
        after_update: Callable[[], None] | None = None,
        epochs: int = 2,
    ) -> None:
        """The functions are called in the loop body, after its step and before it, at an epoch's end, and in the update."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        model, optimizer, batches = self.run.prepare(self.model, optimizer, DATA, 4, after_update=after_update)
        for _ in self.run.epochs(epochs):
            for x, y in batches:
                before()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                behind()
            between()
        self.run.finish()

    def steps(self) -> Iterator[None]:
        """The same training, one body at a time."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        model, optimizer, batches = self.run.prepare(self.model, optimizer, DATA, 4)
        for _ in self.run.epochs(2):
            for x, y in batches:
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                yield


def clamp(script: Script) -> Callable[[], None]:
    @torch.no_grad()
    def act() -> None:
        for parameter in script.model.parameters():
            parameter.clamp_(-0.1, 0.1)

    return act


def clamp_data(script: Script) -> Callable[[], None]:
    """As the discriminator of a Wasserstein GAN is clipped. It does not change the tensors' versions."""

    def act() -> None:
        for parameter in script.model.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    return act


def assign_data(script: Script) -> Callable[[], None]:
    def act() -> None:
        for parameter in script.model.parameters():
            parameter.data = parameter.data * 0.99

    return act


@pytest.mark.parametrize("change", [clamp, clamp_data, assign_data])
@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_parameter_that_the_body_changes_is_refused_by_name(change: Any, where: str) -> None:
    script = Script()
    with pytest.raises(
        UserError, match=r"the parameter 0\.weight was changed in the loop body, .* after_update=function"
    ):
        script.train(**{where: change(script)})


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("first", [3, 4, 5])
def test_a_parameter_that_the_body_begins_to_change_by_its_data_with_an_epoch_is_refused(
    where: str, first: int
) -> None:
    """As a max-norm constraint that begins late: its bits depend on how many bodies a worker runs."""
    script = Script()
    done = 0

    def act() -> None:
        nonlocal done
        done += 1
        if done > 2 * first:
            script.model[0].weight.data.mul_(0.99)  # type: ignore[index, operator, union-attr]

    with pytest.raises(UserError, match=r"the parameter 0\.weight was changed in the loop body"):
        script.train(**{where: act}, epochs=6)


def test_a_clamp_by_data_that_first_acts_in_a_later_step_causes_one_warning() -> None:
    """As CLIP bounds its temperature: behind the update, where a second clamp changes nothing."""
    script = Script()

    def act() -> None:
        if script.run.steps_done >= 4:
            script.model[0].weight.data.clamp_(-0.1, 0.1)  # type: ignore[index, operator, union-attr]

    with pytest.warns(UserWarning, match=r"the parameter 0\.weight was changed behind optimizer\.step\(\)") as caught:
        script.train(behind=act, epochs=8)
    assert len(caught) == 1


@pytest.mark.parametrize("change", [clamp, clamp_data])
def test_what_the_message_advises_works(change: Any) -> None:
    script = Script()
    script.train(after_update=change(script))
    assert max(float(parameter.abs().max().detach()) for parameter in script.model.parameters()) < 0.1001


def test_between_epochs_parameters_are_the_scripts_to_change() -> None:
    script = Script()
    script.train(between=clamp(script))


def test_a_body_may_change_parameters_for_a_while() -> None:
    """As in adversarial weight perturbation, if it restores them."""
    script = Script()
    saved: list[torch.Tensor] = []

    @torch.no_grad()
    def before() -> None:
        saved[:] = [parameter.clone() for parameter in script.model.parameters()]
        for parameter in script.model.parameters():
            parameter.add_(0.1)
        for parameter, old in zip(script.model.parameters(), saved, strict=True):
            parameter.copy_(old)

    script.train(before=before)


class Shadow:
    """An average by hand, as in many scripts: a tensor for each parameter's name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def update(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * parameter.detach()

    def update_in_place(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.shadow[name].data.lerp_(parameter.data, 0.1)


class Copy:
    """The same as a module."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.average = model, copy.deepcopy(model)

    @torch.no_grad()
    def update(self) -> None:
        for old, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            old.lerp_(new, 0.1)

    def update_in_place(self) -> None:
        for old, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            old.data.mul_(0.9).add_(new.data, alpha=0.1)

    def follow(self) -> None:
        self.average.load_state_dict(self.model.state_dict())


@pytest.mark.parametrize("kind", [Shadow, Copy])
@pytest.mark.parametrize("how", ["update", "update_in_place"])
@pytest.mark.parametrize("where", ["behind", "after_update"])
def test_an_average_that_nothing_carries_is_refused(kind: Any, how: str, where: str) -> None:
    script = Script()
    average = kind(script.model)
    with pytest.raises(UserError, match=r"was changed in the loop, and is no part of the job's state: .*run\.register"):
        script.train(**{where: getattr(average, how)})


def test_a_copy_that_follows_between_epochs_comes_with_the_variables_unless_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script()
    target = Copy(script.model)
    script.train(between=target.follow)
    monkeypatch.setattr(mutation_guard, "MOST_BYTES", 100)
    script = Script()
    target = Copy(script.model)
    with pytest.raises(UserError, match="no part of the job's state"):
        script.train(between=target.follow)


def test_a_module_with_an_optimizer_of_its_own_is_to_be_given_to_prepare() -> None:
    script = Script()
    codes = Copy(script.model).average
    codes.eval()
    optimizer = torch.optim.SGD(codes.parameters(), lr=0.1)

    def train() -> None:
        codes(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    with pytest.raises(
        UserError, match=r"is trained in the loop by an optimizer that prepare\(\) did not get: .*ModuleDict"
    ):
        script.train(behind=train)


@pytest.mark.parametrize("how", ["update", "update_in_place"])
def test_a_registered_average_that_the_update_changes_works(how: str) -> None:
    script = Script()
    average = Copy(script.model)
    script.run.register("average", average.average)
    script.train(after_update=getattr(average, how))
    other = Script()
    shadow = Shadow(other.model)
    other.run.register("shadow", lambda: dict(shadow.shadow), shadow.shadow.update)
    other.train(after_update=getattr(shadow, how))


@pytest.mark.parametrize("how", ["update", "update_in_place"])
def test_a_registered_average_that_the_body_changes_is_refused(how: str) -> None:
    script = Script()
    average = Copy(script.model)
    script.run.register("average", average.average)
    with pytest.raises(UserError, match="the registered value 'average' has a tensor that the loop body changes"):
        script.train(behind=getattr(average, how))


class Centre(nn.Module):
    """A loss whose forward pass binds another tensor to its buffer, as DINO's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def follow(self) -> None:
        self.centre = 0.9 * self.centre + 0.1


def test_a_registered_module_whose_buffer_the_body_replaces_is_refused() -> None:
    script, loss = Script(), Centre()
    script.run.register("loss", loss)
    with pytest.raises(UserError, match=r"'loss' has a tensor that the loop body changes.*ModuleDict"):
        script.train(before=loss.follow)


def test_a_registered_module_whose_buffer_the_update_replaces_works() -> None:
    script, loss = Script(), Centre()
    script.run.register("loss", loss)
    script.train(after_update=loss.follow)
    assert loss.centre[0] > 0


def test_a_copy_that_stays_as_it_is_is_nobody_s_business() -> None:
    script = Script()
    teacher, best = copy.deepcopy(script.model), copy.deepcopy(script.model.state_dict())
    script.train(behind=lambda: float(teacher(DATA[0]).sum().detach()))
    assert best


class Listed:
    """An average in a list, as in libraries."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow_params = [parameter.detach().clone() for parameter in model.parameters()]
        self.num_updates = 0
        self.model = model

    @torch.no_grad()
    def update(self) -> None:
        self.num_updates += 1
        for old, new in zip(self.shadow_params, self.model.parameters(), strict=True):
            old.sub_(0.1 * (old - new))

    def update_in_place(self) -> None:
        for old, new in zip(self.shadow_params, self.model.parameters(), strict=True):
            old.data.lerp_(new.data, 0.1)

    @torch.no_grad()
    def replace(self) -> None:
        pairs = zip(self.shadow_params, self.model.parameters(), strict=True)
        self.shadow_params = [0.9 * old + 0.1 * new for old, new in pairs]

    def replace_each(self) -> None:
        for number, new in enumerate(self.model.parameters()):
            self.shadow_params[number] = new.detach().clone()


@pytest.mark.parametrize(
    ("how", "where"),
    [
        *((how, "behind") for how in ("update", "update_in_place", "replace", "replace_each")),
        *((how, "between") for how in ("update", "replace", "replace_each")),
    ],
)
def test_an_average_in_a_list_is_refused_by_the_name_of_the_attribute(
    how: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutation_guard, "MOST_BYTES", 100)  # larger ones do not come with the variables
    script = Script()
    average = Listed(script.model)
    with pytest.raises(
        UserError,
        match=r"behind\.shadow_params|between\.shadow_params|average\.shadow_params",
    ) as refused:
        script.train(**{where: getattr(average, how)})
    assert 'run.register("shadow_params", lambda: ' in str(refused.value)


@pytest.mark.parametrize("kind", [list, tuple])
def test_so_is_one_in_a_variable(kind: Any) -> None:
    script = Script()
    slow = kind(parameter.detach().clone() for parameter in script.model.parameters())

    @torch.no_grad()
    def follow() -> None:
        for old, new in zip(slow, script.model.parameters(), strict=True):
            old.lerp_(new, 0.5)

    with pytest.raises(UserError, match=r"^slow has tensors of the shapes of the model's parameters.*run\.register"):
        script.train(behind=follow)


def test_so_is_a_mapping_with_keys_of_its_own() -> None:
    script = Script()
    slow = {number: parameter.detach().clone() for number, parameter in enumerate(script.model.parameters())}

    def follow() -> None:
        for number, new in enumerate(script.model.parameters()):
            slow[number] = new.detach().clone()

    with pytest.raises(UserError, match=r'^slow has tensors .* run\.register\("slow", lambda: slow, slow\.update\)'):
        script.train(behind=follow)


@pytest.mark.parametrize("how", ["update", "replace", "replace_each"])
def test_the_line_that_registers_a_list_works(how: str) -> None:
    script = Script()
    ema = Listed(script.model)
    before = ema.shadow_params[0].clone()
    script.run.register(
        "shadow_params", lambda: ema.shadow_params, lambda values: ema.shadow_params.__setitem__(slice(None), values)
    )
    script.train(after_update=getattr(ema, how))
    assert not torch.equal(before, ema.shadow_params[0])


def test_a_list_that_is_registered_as_copies_is_registered() -> None:
    script = Script()
    ema = Listed(script.model)
    script.run.register(
        "average",
        lambda: [each.clone() for each in ema.shadow_params],
        lambda values: ema.shadow_params.__setitem__(slice(None), values),
    )
    script.train(after_update=ema.update)


def test_lists_of_the_model_s_own_parameters_and_lists_that_stay_as_they_are_are_no_copies() -> None:
    script = Script()
    own, first = list(script.model.parameters()), [each.detach().clone() for each in script.model.parameters()]
    script.train(behind=lambda: [each.sum() for each in (*own, *first)].clear())


def test_a_list_that_is_said_to_be_a_worker_s_own_may_change() -> None:
    script = Script()
    scratch = [torch.zeros_like(parameter) for parameter in script.model.parameters()]

    def draw() -> None:
        for each in scratch:
            each.normal_()

    script.run.local("scratch")
    script.train(before=draw)


def test_only_a_variable_of_the_script_can_be_said_to_be_a_worker_s_own() -> None:
    script = Script()
    with pytest.raises(UserError, match=r"local\('scrach'\): the script has no variable 'scrach'"):
        script.run.local("script", "scrach")
    with pytest.raises(UserError, match="without a name"):
        script.run.local()
    with pytest.raises(UserError, match="give the name of a variable as text"):
        script.run.local(script)  # type: ignore[arg-type]
    script.train()
    with pytest.raises(UserError, match=r"local\(\) was called after epochs\(\)"):
        script.run.local("script")


def test_the_model_of_another_job_in_the_same_process_is_no_copy() -> None:
    """As in a notebook, with a cell that is run once more."""
    first, second = Script(), Script()
    first_steps, second_steps = first.steps(), second.steps()
    for _ in range(4):
        next(first_steps)
        next(second_steps)
    assert first.run.steps_done == second.run.steps_done > 0


def test_other_things_beside_tensors_and_lazy_modules_are_no_copies() -> None:
    script = Script()
    mixed: dict[str, Any] = {
        **copy.deepcopy(script.model.state_dict()),
        "lines": ["a"],
        "meta": torch.zeros(2, device="meta"),
    }
    lazy = nn.LazyLinear(3)
    script.train(behind=lambda: mixed.update(lines=["b"]))
    assert list(lazy.parameters())
