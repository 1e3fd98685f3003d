"""`prepare` rejects wrong arguments with the right message."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import elasticd as elastic
from elasticd.protocol.errors import UserError
from elasticd.worker.checking import check_model, check_optimizers
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run

DATA = torch.zeros(8, 2), torch.zeros(8, 1)


def prepare(model: Any = None, optimizer: Any = None, *data: Any, **options: Any) -> Any:
    model = nn.Linear(2, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    run = Run(LocalControl.alone(2), None, 2, seed=1)
    return run.prepare(model, optimizer, *(data or (DATA, 2)), **options)


def another(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def lbfgs(model: nn.Module) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(model.parameters())


class OwnLBFGS(torch.optim.LBFGS):
    """With its own `step`."""


SYNC = nn.Sequential(nn.Linear(2, 1), nn.SyncBatchNorm(1))
NET = nn.Linear(2, 1)
LAZY = nn.Sequential(nn.LazyLinear(1))


def of_another() -> torch.optim.Optimizer:
    return another(nn.Linear(2, 1))


def plateau() -> torch.optim.lr_scheduler.ReduceLROnPlateau:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(of_another())


def made(value: Any) -> Any:
    """Call the functions above in the test: the first optimizer of a process imports torch's compiler."""
    return value() if isinstance(value, FunctionType) else value


@pytest.mark.parametrize(
    ("model", "optimizer", "options", "said"),
    [
        ([nn.Linear(2, 1)], of_another, {}, r"one model, not a list of several: .* torch.nn.ModuleDict"),
        ({"g": nn.Linear(2, 1)}, of_another, {}, "one model, not a dict of several"),
        ("resnet", of_another, {}, "the model is 'resnet'"),
        (
            of_another,
            nn.Linear(2, 1),
            {},
            r"the model is a SGD: prepare\(\) takes \(model, optimizer, dataset",
        ),
        (nn.ReLU(), of_another, {}, "the model, a ReLU, has no parameters to train"),
        (nn.DataParallel(nn.Linear(2, 1)), None, {}, "wrapped in DataParallel: give what is in it, model.module"),
        (LAZY, of_another, {}, "has parameters without a shape .* call it once with a batch"),
        (SYNC, None, {}, "1 is a SyncBatchNorm: .* Use torch.nn.GroupNorm, or BatchNorm"),
        (None, "adam", {}, "the optimizer is 'adam': give a torch.optim.Optimizer"),
        (None, [], {}, "no optimizer"),
        (None, [3], {}, "optimizer 0 is 3"),
        (None, of_another, {}, "the optimizer, SGD, has none of this model's parameters"),
        (
            None,
            None,
            {"scheduler": plateau},
            r"scheduler= is a ReduceLROnPlateau, whose step needs a metric: .* scheduler.step",
        ),
        (None, None, {"scheduler": "cosine"}, "scheduler= is 'cosine'"),
        (None, None, {"max_grad_norm": 0}, "max_grad_norm is 0; it must be a number greater than 0"),
        (None, None, {"before_update": 3}, "before_update= takes a function without arguments, not 3"),
        (NET, lambda: [lbfgs(NET), another(NET)], {}, "given LBFGS and another optimizer: .* Give it all of them"),
        (
            NET,
            lambda: OwnLBFGS(NET.parameters()),
            {},
            "the optimizer is a OwnLBFGS, made of LBFGS: .* Give a torch.optim.LBFGS",
        ),
        (
            NET,
            lambda: lbfgs(NET),
            {"max_grad_norm": 1.0},
            "max_grad_norm= was given, and the optimizer is LBFGS: a clipped",
        ),
        (NET, lambda: lbfgs(NET), {"before_update": print}, "before_update= was given, .* LBFGS: .* Change the loss"),
        (
            NET,
            lambda: lbfgs(NET),
            {"normalize": "items"},
            "normalize= was given, .* LBFGS: .* Return a mean from the closure",
        ),
    ],
)
def test_wrong_objects_get_the_right_sentence(model: Any, optimizer: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        prepare(made(model), made(optimizer), **{name: made(value) for name, value in options.items()})


def test_the_length_of_the_batches_is_that_of_an_epoch_in_global_steps() -> None:
    run = Run(LocalControl.alone(2), None, 2, seed=1)
    with pytest.raises(UserError, match=r"call run.prepare\(.*\) before run.steps_per_epoch"):
        _ = run.steps_per_epoch
    model = nn.Linear(2, 1)
    _, _, batches = run.prepare(model, another(model), DATA, 3)
    assert len(batches) == run.steps_per_epoch == 2


def test_batches_have_the_attributes_of_a_loader_that_scripts_print() -> None:
    run = Run(LocalControl.alone(2), None, 2, seed=1)
    model = nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 2)), batch_size=3)
    _, _, batches = run.prepare(model, another(model), loader)
    assert (batches.dataset, batches.batch_size) == (loader.dataset, 3)


def test_a_second_model_is_refused_with_the_way_to_train_several() -> None:
    run = Run(LocalControl.alone(2), None, 2, seed=1)
    model = nn.Linear(2, 1)
    run.prepare(model, another(model), DATA, 3)
    with pytest.raises(UserError, match=r"prepare\(\) was called twice: .* folds, .* submit the script once for each"):
        run.prepare(model, another(model), DATA, 3)


def test_a_model_whose_parameters_are_divided_among_processes_is_refused_with_the_way_that_it_can_run() -> None:
    from torch.distributed.tensor import DeviceMesh, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model = torch.nn.Linear(4, 4)
        mesh = DeviceMesh("cpu", torch.arange(2))
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh))
        with pytest.raises(
            UserError, match=r"the parameter weight is a DTensor.* elasticctl submit --gpus 4 -- torchrun"
        ):
            check_model(model)
    finally:
        torch.distributed.destroy_process_group()


def test_a_process_group_of_the_scripts_own_is_refused_with_what_takes_its_place() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    run, model = Run(LocalControl.alone(2), None, 2, seed=1), nn.Linear(2, 1)
    run.prepare(model, another(model), DATA, 3)
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(
            UserError, match=r"init_process_group\(\) was called: .* come and go.* run.gather\(tensor\)"
        ):
            elastic.join()
        with pytest.raises(UserError, match=r"init_process_group\(\) was called"):
            next(run.epochs(1))
    finally:
        torch.distributed.destroy_process_group()
    assert next(run.epochs(1)) == 0


class TwoSteps(torch.optim.SGD):
    """As in public implementations of sharpness-aware minimization."""

    def first_step(self) -> None:
        """Ascend."""

    def second_step(self) -> None:
        """Descend from the start of the step."""


class UpAndDown(torch.optim.SGD):
    def ascent_step(self) -> None:
        """Ascend."""

    def descent_step(self) -> None:
        """Descend."""


def test_an_optimizer_that_evaluates_a_step_at_two_points_is_refused_with_the_reason() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"TwoSteps, evaluates the loss of a step at two points"):
        check_optimizers(model, TwoSteps(model.parameters(), lr=0.1))
    with pytest.raises(UserError, match=r"UpAndDown, evaluates .* copy the old values back, optimizer.step\(\)"):
        check_optimizers(model, UpAndDown(model.parameters(), lr=0.1))


def test_sparse_gradients_are_refused_before_the_loop_with_the_line_to_write() -> None:
    for layer in (nn.Embedding(5, 2, sparse=True), nn.EmbeddingBag(5, 2, sparse=True)):
        model = nn.Sequential(nn.Identity(), layer)
        with pytest.raises(UserError, match=rf"1 is an {type(layer).__name__} with sparse=True.* write sparse=False"):
            check_model(model)
        layer.weight.requires_grad_(False)
        check_model(nn.Sequential(model, nn.Linear(2, 1)))
    dense = nn.Embedding(5, 2)
    with pytest.raises(UserError, match=r"takes sparse gradients only.* torch.optim.Adam in place of SparseAdam"):
        check_optimizers(dense, torch.optim.SparseAdam(dense.parameters()))
