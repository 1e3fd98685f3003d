"""Scripts that may apply `fully_shard`: each NAME divides its model, and NAME_whole is the same script without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from training_cases import EPOCHS, Points, network

from elasticd.protocol.errors import UserError
from elasticd.worker.run import Run


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width + 1), nn.GELU(), nn.Linear(3 * width + 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return torch.as_tensor(x + self.mlp(self.second(x)))


class Transformer(nn.Module):
    """Twelve numbers are a sequence of four vectors."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Linear(3, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.head = nn.Linear(width, 3)
        self.unused = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.view(len(x), 4, 3))
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(self.frozen(x).mean(1)))


def plain_tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {key: getattr(value, "_local_tensor", value) for key, value in state.items()}


def train(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    body: Callable[[], None] = lambda: None,
    left_at: int | None = None,
    **options: Any,
) -> list[Any]:
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5, **options)
    norms: list[float | None] = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done == left_at:
                break
            body()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.steps_done == left_at:
            break
        norms.append(run.grad_norm)
    run.finish()
    return [plain_tensors(model.state_dict()), *([] if None in norms else norms[-1:])]


def transformer_whole(run: Run, divided: bool = False) -> list[Any]:
    """AdamW with a schedule, clipped."""
    model = Transformer()
    if divided:
        for block in model.blocks:
            fully_shard(block, mesh=run.mesh())
        fully_shard(model, mesh=run.mesh())
    own = [*model.parameters()]
    before = model.state_dict()
    optimizer = torch.optim.AdamW(own, lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    found = train(run, model, optimizer, scheduler=schedule, max_grad_norm=0.5)
    return [*found, len(own), len(before)]


def clipped_in_bodies_whole(run: Run, divided: bool = False) -> list[Any]:
    """BatchNorm, two groups, momentum; the root is the only layer. The loop is left in its middle."""
    model = network()
    if divided:
        fully_shard(model, mesh=run.mesh(), reshard_after_forward=False)
    groups = [{"params": [*model[0].parameters()], "lr": 0.1}, {"params": [*model[1:].parameters()]}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return train(run, model, optimizer, lambda: run.clip(0.7), left_at=21)


def state_from_before_whole(run: Run, divided: bool = False) -> list[Any]:
    """Adagrad begins with a state."""
    model = network()
    if divided:
        for layer in (model[0], model[4]):
            fully_shard(layer, mesh=run.mesh())
        fully_shard(model, mesh=run.mesh())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.3)
    return train(run, model, optimizer, num_workers=1)


def summed_whole(run: Run, divided: bool = False) -> list[Any]:
    """The loss is a sum over items; blocks are computed again in the backward pass; the job is ended by a function."""
    model = Transformer()
    if divided:
        for block in model.blocks:
            fully_shard(block, mesh=run.mesh())
        fully_shard(model, mesh=run.mesh())
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.003, momentum=0.5)
    state = run.state(steps=0)

    @run.every(steps=5)
    def look() -> None:
        state.steps += run.agree(1)
        if run.steps_done == 20:
            run.stop()

    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5, normalize="items")
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y, reduction="sum").backward()
            run.share(items=len(y))
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    return [plain_tensors(model.state_dict()), state.steps, run.steps_done]


summed = partial(summed_whole, divided=True)
transformer = partial(transformer_whole, divided=True)
clipped_in_bodies = partial(clipped_in_bodies_whole, divided=True)
state_from_before = partial(state_from_before_whole, divided=True)


def measured(run: Run) -> list[Any]:
    """Return the greatest number of workers among which parameters and state of the optimizer were divided."""
    model = nn.Sequential(*(nn.Linear(12, 12) for _ in range(3)), nn.Linear(12, 3))
    torch.manual_seed(9)
    for layer in model:
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())
    optimizer: Any = torch.optim.AdamW(model.parameters())
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5)
    sizes: set[int] = set()

    def look() -> None:
        parameters: list[Any] = [*model.parameters()]
        assert all(isinstance(each, DTensor) for each in parameters), "a layer was not freed"
        sizes.update(each.device_mesh.size() for each in parameters)
        size = parameters[0].device_mesh.size()
        held = sum(each.to_local().untyped_storage().nbytes() for each in parameters)
        rows = sum(-(-each.shape[0] // size) * each.shape[1:].numel() for each in parameters)
        assert held == 4 * rows
        assert run._trainer is not None
        assert run._trainer.sharded is not None
        values = [each for piece in run._trainer.sharded._pieces for each in piece.state.values() if each.dim()]
        own = sum(each.to_local().nbytes for each in parameters)
        assert sum(each.untyped_storage().nbytes() for each in values) in (0, 2 * own)

    for _ in run.epochs(1):
        for x, y in batches:
            look()
            functional.cross_entropy(model(x), y).backward()
            look()
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    return [{}, max(sizes)]


# ------------------------------------------------------------------------------------------------------------- mistakes


class Two(nn.Module):
    """Two layers of equal shape, which a body may use in either order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.first, self.second, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.turned = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = [self.second, self.first] if self.turned else [self.first, self.second]
        for layer in layers:
            x = layer(x).relu()
        return torch.as_tensor(self.head(x))


def mistake(
    run: Run,
    in_body: Callable[[Two, torch.Tensor], None] = lambda model, x: None,
    behind: Callable[[Two, torch.Tensor], None] = lambda model, x: None,
    between: Callable[[Two], None] = lambda model: None,
    backward: bool = True,
) -> list[Any]:
    """Return the message with which the runtime refuses the script's code in the second step.

    backward: whether the body calls it in this step."""
    model = Two()
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    run.every(steps=2)(lambda: between(model))
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5)
    try:
        for _ in run.epochs(1):
            for x, y in batches:
                if run.steps_done == 1:
                    in_body(model, x)
                if backward or run.steps_done != 1:
                    functional.cross_entropy(model(x), y).backward()
                if run.steps_done == 1:
                    behind(model, x)
                optimizer.step()
                optimizer.zero_grad()
    except UserError as error:
        return [{}, str(error)]
    return [{}, "nothing was refused"]


def turn(model: Two, x: torch.Tensor) -> None:
    """Let bodies use the layers in an order that depends on their samples."""
    model.turned = bool(x[0, 0] > x[0, 1])


def clip(model: Two, x: torch.Tensor) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def change_gradient(model: Two, x: torch.Tensor) -> None:
    grad = model.head.weight.grad
    assert grad is not None
    assert bool(torch.as_tensor(getattr(grad, "_local_tensor", grad)).isnan().all()), "no worker has it"
    grad.zero_()


def replace_gradient(model: Two, x: torch.Tensor) -> None:
    model.head.weight.grad = torch.zeros_like(model.head.weight)


def change_parameter(model: Two, x: torch.Tensor) -> None:
    with torch.no_grad():
        model.head.weight.mul_(2)


def clip_values(model: Two, x: torch.Tensor) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)


def clamp_data_of_gradient(model: Two, x: torch.Tensor) -> None:
    grad = model.head.weight.grad
    assert grad is not None
    assert "nan" in str(grad)
    assert torch.as_tensor(getattr(grad.abs(), "_local_tensor", grad)).isnan().all(), "reading is not refused"
    grad.data.clamp_(-1, 1)


def change_data(model: Two, x: torch.Tensor) -> None:
    for each in model.parameters():
        each.data.mul_(0.999)


def hook(model: Two, x: torch.Tensor) -> None:
    model.head.weight.register_hook(lambda grad: grad / 2)


def change_in_forward(model: Two, x: torch.Tensor) -> None:
    """Change a gathered parameter, as the forward pass of nn.Embedding with max_norm does."""

    def clamp(layer: nn.Module, given: Any, output: Any) -> None:
        with torch.no_grad():
            model.first.weight.clamp_(min=-0.1)

    model.first.register_forward_hook(clamp, prepend=True)


def again(model: Two, x: torch.Tensor) -> None:
    model(x).sum().backward()


def set_factor(model: Two, x: torch.Tensor) -> None:
    for layer in (model, model.first, model.second):
        layer.set_gradient_divide_factor(2.0)  # type: ignore[operator]


def read(model: Two, x: torch.Tensor) -> None:
    assert float(model.head.weight.norm()) < 0, "it was read"


def sum_up(model: Two, x: torch.Tensor) -> None:
    norm: Any = model.head.weight.norm()
    assert norm.full_tensor() < 0, "it was read"


def penalise(model: Two, x: torch.Tensor) -> None:
    weight: Any = model.head.weight
    weight.full_tensor().square().sum().backward()


def leave_out(model: Two, x: torch.Tensor) -> None:
    model.head.weight.grad = None


def differentiate(model: Two, x: torch.Tensor) -> None:
    """Ask for gradients that plain training would have."""
    own = [*model.parameters()]
    found = torch.autograd.grad(model(x).sum(), own, allow_unused=True)
    assert all(each is None for each in found)


def change_between(model: Two) -> None:
    with torch.no_grad():
        model.head.weight.mul_(2)


turned = partial(mistake, in_body=turn)
clipped = partial(mistake, behind=clip)
changed_gradient = partial(mistake, behind=change_gradient)
replaced_gradient = partial(mistake, behind=replace_gradient)
changed_parameter = partial(mistake, behind=change_parameter)
clipped_values = partial(mistake, behind=clip_values)
clamped_data_of_gradient = partial(mistake, behind=clamp_data_of_gradient)
changed_data = partial(mistake, in_body=change_data)
hooked = partial(mistake, in_body=hook)
changed_in_forward = partial(mistake, in_body=change_in_forward)
set_factor_behind = partial(mistake, in_body=set_factor)
twice = partial(mistake, behind=again)
number_read = partial(mistake, in_body=read)
summed_up = partial(mistake, in_body=sum_up)
penalised = partial(mistake, in_body=penalise)
left_out = partial(mistake, behind=leave_out)
differentiated = partial(mistake, in_body=differentiate, backward=False)
changed_between = partial(mistake, between=change_between)
