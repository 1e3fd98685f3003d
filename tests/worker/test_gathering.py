"""Losses over the whole global batch (`run.gather`): correct gradients, and equal bits in every history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run
from tests.worker.ranks import also

ALONE = [[0, [0]]]
# One, three, one of them lost in a step that it has missed, two, others, five (one of them without a virtual worker)
CHANGING = [[0, [0]], [4, [0, 1, 2]], [9, [0, 1, 2], [2]], [12, [1, 2]], [15, [2, 3, 4, 5, 6]], [18, [3, 4]]]


@pytest.mark.parametrize("case", ["clip", *also("others_are_constant", "simclr", "sampler_by_losses")])
def test_losses_over_the_global_batch_give_the_bits_of_one_worker_alone(ranks: Any, case: str) -> None:
    (expected,) = ranks.outcome(f"gather_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"gather_cases.{case}", CHANGING).states) == {expected}


# ----------------------------------------------------------------------------------------------------- alone


N, B = 4, 3
DATA = torch.randn(N * B * 2, 5, generator=torch.Generator().manual_seed(1))
Loss = Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor], torch.Tensor]


def of_own_rows(own: torch.Tensor, every: torch.Tensor, virtual_worker: int, scale: torch.Tensor) -> torch.Tensor:
    labels = torch.arange(len(own)) + virtual_worker * len(own)
    return functional.cross_entropy(scale * own @ every.T, labels)


def of_all_rows(own: torch.Tensor, every: torch.Tensor, virtual_worker: int, scale: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scale * every @ every.T, torch.arange(len(every)).roll(1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))


def trained(loss: Loss, differentiable: bool, passes: int = 1, virtual_workers: int = N) -> Encoder:
    model, run = Encoder(), Run(LocalControl.alone(virtual_workers), None, virtual_workers, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    options: Any = {"batch_size": B, "shuffle": False, "gathers": True}
    model, optimizer, batches = run.prepare(model, optimizer, (DATA.double(),), **options)
    for _ in run.epochs(1):
        for (x,) in batches:
            own = model.net(x)
            every = run.gather(own, differentiable)
            for number in range(passes):
                value = loss(own, every, run.virtual_worker, model.scale) / passes
                value.backward(retain_graph=number + 1 < passes)
            optimizer.step()
    return model


def reference(loss: Loss, differentiable: bool) -> Encoder:
    """The same on one device: the mean of all losses over whole global batches."""
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for whole in DATA.double().split(N * B):
        own = model.net(whole).split(B)
        losses = []
        for v in range(N):
            seen = [each if differentiable or u == v else each.detach() for u, each in enumerate(own)]
            losses.append(loss(own[v], torch.cat(seen), v, model.scale))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("loss", [of_own_rows, of_all_rows])
@pytest.mark.parametrize("differentiable", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_step_has_the_gradient_of_the_mean_of_all_losses(loss: Loss, differentiable: bool, passes: int) -> None:
    found, expected = trained(loss, differentiable, passes), reference(loss, differentiable)
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not torch.equal(found.scale, Encoder().scale)


def test_with_one_virtual_worker_the_global_batch_is_its_own() -> None:
    found = trained(of_own_rows, True, virtual_workers=1)
    run_once, model = [], Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for x in DATA.double().split(B):
        optimizer.zero_grad()
        of_own_rows(own := model.net(x), own, 0, model.scale).backward()
        optimizer.step()
        run_once.append(x)
    torch.testing.assert_close(found.scale, model.scale)


def loop(body: Callable[[Run, nn.Module, torch.Tensor], None], size: int = len(DATA), **options: Any) -> Run:
    run, model = Run(LocalControl.alone(N), None, N, 0), Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data = (DATA[:size].double(),)
    model, optimizer, batches = run.prepare(model, optimizer, data, **{"batch_size": B, "gathers": True, **options})
    for _ in run.epochs(2):
        for (x,) in batches:
            body(run, model, x)
            optimizer.step()
    run.finish()
    return run


def test_gathering_that_was_not_announced_is_refused_with_the_line_to_write() -> None:
    def body(run: Run, model: Any, x: torch.Tensor) -> None:
        run.gather(model.net(x))

    with pytest.raises(UserError, match=r"prepare\(…, gathers=True\)"):
        loop(body, gathers=False)


def test_batches_of_several_sizes_are_refused_with_the_line_to_write() -> None:
    def body(run: Run, model: Any, x: torch.Tensor) -> None:
        run.gather(model.net(x)).sum().backward()

    with pytest.raises(UserError, match=r"virtual worker 3 tensors of the shapes \[2, 4\].* drop_last=True"):
        loop(body, size=N * B - 1)
    with pytest.raises(UserError, match=r"virtual worker 3 none: .* drop_last=True"):
        loop(body, size=N - 1)
    assert loop(body, size=2 * N * B - 1, drop_last=True).steps_done == 2


def test_a_body_that_goes_on_from_what_it_has_left_is_refused() -> None:
    count = 0

    def tensor(run: Run, model: Any, x: torch.Tensor) -> None:
        nonlocal count
        count += 1
        run.gather(model.net(x) * count).sum().backward()

    def gradient(run: Run, model: Any, x: torch.Tensor) -> None:
        nonlocal count
        count += 1
        (run.gather(model.net(x)).sum() * count).backward()

    def calls(run: Run, model: Any, x: torch.Tensor) -> None:
        nonlocal count
        count += 1
        for _ in range(1 + (count > N)):
            run.gather(model.net(x)).sum().backward()

    def chained(run: Run, model: Any, x: torch.Tensor) -> None:
        run.gather(run.gather(model.net(x))[:B] + 1.0).sum().backward()

    for body, what in (
        (tensor, "the tensor"),
        (gradient, "the gradient of its loss"),
        (calls, "the number of its calls"),
    ):
        count = 0
        with pytest.raises(UserError, match=rf"run.gather\(\): {what} .* runs again for virtual worker 0"):
            loop(body)
    with pytest.raises(UserError, match="what another"):
        loop(chained)


def test_a_loss_that_leaves_the_gathered_tensor_out_for_one_virtual_worker_is_refused() -> None:
    def body(run: Run, model: Any, x: torch.Tensor) -> None:
        every = run.gather(own := model.net(x))
        (own.sum() if run.virtual_worker == 2 else every.sum()).backward()

    with pytest.raises(
        UserError, match="the loss of virtual worker 2 in step 0 does not depend on what it has returned"
    ):
        loop(body)


def test_a_loop_that_is_left_between_two_passes_is_refused() -> None:
    run, model = Run(LocalControl.alone(N), None, N, 0), Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    model, optimizer, batches = run.prepare(model, optimizer, (DATA.double(),), batch_size=B, gathers=True)

    def leave() -> None:
        for _ in run.epochs(2):
            for (x,) in batches:
                run.gather(model.net(x)).sum().backward()
                optimizer.step()
                break

    with pytest.raises(UserError, match="in which each loop body runs three times"):
        leave()


def test_frameworks_loops_and_lbfgs_are_refused() -> None:
    model, run = nn.Linear(5, 1), Run(LocalControl.alone(N), None, N, 0)
    lbfgs, sgd = torch.optim.LBFGS(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="gathers=True was given, and the optimizer is LBFGS"):
        run.prepare(model, lbfgs, (DATA,), batch_size=B, gathers=True)
    run.prepare(model, sgd, (DATA,), batch_size=B, gathers=True)
    run.begin(epochs=1)
    with pytest.raises(UserError, match=r"run.steps\(\) was called, and prepare\(\) was given gathers=True"):
        next(iter(run.steps()))
