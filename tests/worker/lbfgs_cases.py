"""Training loops with torch.optim.LBFGS, which evaluates the loss of a step several times. Each returns its final state, as
`training_cases` do. They are written as for one GPU.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from followed_cases import Few
from followed_cases import network as dropping
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from training_cases import EPOCHS, LENGTHS, Points, Shard, network

import elasticd as elastic
from elasticd.protocol.errors import UserError
from elasticd.worker.run import Run


def smooth() -> nn.Sequential:
    """Without dropout or buffers."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))


def train(run: Run, model: nn.Module, dataset: Any = None, **options: Any) -> list[Any]:
    """The ordinary loop of the LBFGS manual."""
    raw = torch.optim.LBFGS(model.parameters(), **{"lr": 0.3, "max_iter": 4, "history_size": 5, **options})
    model, optimizer, batches = run.prepare(model, raw, dataset or Few(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)  # noqa: B023
                loss.backward()
                return loss

            assert math.isfinite(optimizer.step(closure))
    run.finish()
    state = raw.state_dict()
    assert state["state"][0]["func_evals"] > 1.5 * run.steps_done, "it has evaluated no loss twice"
    return [model.state_dict(), state]


def fixed_step(run: Run) -> list[Any]:
    return train(run, smooth())


def wolfe(run: Run) -> list[Any]:
    return train(run, smooth(), lr=1, line_search_fn="strong_wolfe")


def dropout(run: Run) -> list[Any]:
    """Dropout, and a buffer that each evaluation changes."""
    return train(run, dropping(), lr=0.01)


def dropout_wolfe(run: Run) -> list[Any]:
    return train(run, dropping(), line_search_fn="strong_wolfe", max_iter=3)


def normalized(run: Run) -> list[Any]:
    """BatchNorm, and dropout."""
    return train(run, network(), Points(), line_search_fn="strong_wolfe", max_iter=3)


def shards(run: Run) -> list[Any]:
    """Sequential data: each batch is read once."""
    return train(run, smooth(), elastic.Shards(range(len(LENGTHS)), open=Shard), max_iter=3)


def natural(run: Run) -> list[Any]:
    """Other permitted parts of such a loop: an option set by hand, a scheduler, an average, a changed batch, shared values, and
    hooks.
    """
    model = dropping()
    raw = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=3)
    hooks: list[str] = []
    raw.register_step_pre_hook(lambda *_: hooks.append("before"))
    raw.register_step_post_hook(lambda *_: hooks.append("behind"))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(raw, 0.9)
    average = AveragedModel(model)
    seen: list[Any] = []
    updates = 0

    def updated() -> None:
        nonlocal updates
        updates += 1
        assert hooks == ["before", "behind"] * updates
        seen.append([run.means["loss"], run.shared["norm"].values])

    run.register("seen", lambda: list(seen), lambda values: seen.__setitem__(slice(None), values))
    model, optimizer, batches = run.prepare(model, raw, Few(), batch_size=5, after_update=updated)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            x.add_(0.1 * torch.randn_like(x))
            optimizer.param_groups[0]["max_iter"] = 2 + run.steps_done % 3

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)  # noqa: B023
                (loss + 0.001 * model[0].weight.square().sum()).backward()
                run.share(loss=loss, norm=x.norm())  # noqa: B023
                return loss.detach()

            steps, loss = run.steps_done, optimizer.step(closure)
            assert math.isfinite(loss), "its result would tell nothing"
            assert run.steps_done == steps + 1
            assert run.last_lr == () or run.last_lr[0] < 0.1000001
            scheduler.step()
            average.update_parameters(model)
    run.finish()
    return [model.state_dict(), raw.state_dict(), scheduler.state_dict(), average.state_dict(), seen]


def saved_in_the_closure(run: Run) -> list[Any]:
    """`run.save` while the parameters are those of a line search. The result must be that of `fixed_step`."""
    model = smooth()
    path = Path(tempfile.mkdtemp()) / "model.pt"
    raw = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=5)
    applied: list[torch.Tensor] = []
    bodies = 0

    def keep() -> None:
        applied[:] = [parameter.detach().clone() for parameter in model.parameters()]

    def check() -> None:
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), applied, strict=True))

    keep()
    run.local("applied")
    model, optimizer, batches = run.prepare(model, raw, Few(), batch_size=5, after_update=keep)
    for _ in run.epochs(EPOCHS):
        keep()  # a joiner has others' parameters
        for x, y in batches:
            check()

            def closure() -> torch.Tensor:
                nonlocal bodies
                bodies += 1
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)  # noqa: B023
                before = [parameter.detach().clone() for parameter in model.parameters()]
                if run.is_leader:  # which writes it at once
                    run.save(model, path)
                    saved = torch.load(path).values()
                    assert all(torch.equal(one, other) for one, other in zip(saved, applied, strict=True))
                assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
                loss.backward()
                return loss

            optimizer.step(closure)
            check()
    run.finish()
    assert bodies > 0
    return [model.state_dict(), raw.state_dict()]


def refused(run: Run, spoil: Any, **options: Any) -> list[Any]:
    """The refusal's message, where one worker does something else."""
    model = smooth()
    raw = torch.optim.LBFGS(model.parameters(), **options)
    model, optimizer, batches = run.prepare(model, raw, Few(), batch_size=5)
    try:
        for _ in run.epochs(EPOCHS):
            for x, y in batches:
                if run.rank == 1 and run.steps_done == 2:
                    spoil(raw)

                def closure() -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = functional.cross_entropy(model(x), y)  # noqa: B023
                    loss.backward()
                    return loss

                optimizer.step(closure)
    except UserError as error:
        run.finish()
        return [model.state_dict(), str(error)]
    raise AssertionError("it was not refused")


def options_that_differ(run: Run) -> list[Any]:
    """One worker would evaluate the loss once more."""
    return refused(run, lambda optimizer: optimizer.param_groups[0].update(max_iter=5), max_iter=4, lr=0.3)


def states_that_differ(run: Run) -> list[Any]:
    """The tensors of one worker's optimizer differ, which is not compared without determinism."""

    def spoil(optimizer: torch.optim.Optimizer) -> None:
        (state,) = optimizer.state.values()
        for each in state["ro"]:
            each.fill_(-100.0)  # its loss would rise there; it ends instead

    return refused(run, spoil, line_search_fn="strong_wolfe", max_iter=4)
