"""Scripts in the manner of public ones that use `fully_shard`: PyTorch's example, torchtitan, fine-tuning, siamese losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fsdp_cases import Block, plain_tensors
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional
from training_cases import Points

from elasticd.protocol.errors import UserError
from elasticd.worker.run import Run

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Model(nn.Module):
    """A model of language: twelve numbers are turned into a sequence of tokens."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.embed = nn.Embedding(9, 10)
        self.layers = nn.ModuleList([Block(10) for _ in range(3)])
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 9, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return torch.as_tensor(self.head(self.norm(x)))


def tokens_of(x: torch.Tensor) -> torch.Tensor:
    return (x.abs() * 7).long() % 9


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    tokens = tokens_of(x)
    return functional.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


def train(
    run: Run,
    model: Any,
    body: Callable[[Any, torch.Tensor], None] = lambda model, x: loss_of(model, x).backward(),
    behind: Callable[[Run, Any, torch.Tensor], Any] = lambda run, model, x: None,
    parameters: Callable[[Any], Any] = lambda model: model.parameters(),
) -> list[Any]:
    optimizer: Any = torch.optim.AdamW(parameters(model), lr=0.02)
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5, max_grad_norm=1.0)
    for _ in run.epochs(4):
        for x, _y in batches:
            body(model, x)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            behind(run, model, x)
    run.finish()
    return [plain_tensors(model.state_dict())]


def example(run: Run) -> list[Any]:
    """PyTorch's example: meta tensors, prefetching to both sides, unshard() before the pass, checks of the layers."""
    with torch.device("meta"):
        model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh(), mp_policy=HALF)
    fully_shard(model, mesh=run.mesh(), mp_policy=HALF)
    assert isinstance(model, FSDPModule)
    layers: list[Any] = list(model.layers)
    for number, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 3])
        layer.set_modules_to_backward_prefetch(layers[max(number - 2, 0) : number][::-1])
    model.to_empty(device="cpu")
    torch.manual_seed(1)
    for module in model.modules():
        for name in ("reset_parameters", "_reset_parameters"):
            if hasattr(module, name):
                getattr(module, name)()

    def body(model: Any, x: torch.Tensor) -> None:
        model.unshard()
        loss_of(model, x).backward()

    return train(run, model, body)


def titan(run: Run) -> list[Any]:
    """torchtitan: checkpointing, then torch.compile, then fully_shard; the last layers are not freed; embedding apart."""
    model = Model()
    for name, layer in model.layers.named_children():
        wrapped = checkpoint_wrapper(layer, preserve_rng_state=True)
        wrapped.compile(backend="eager", fullgraph=False)
        model.layers.register_module(name, wrapped)
    options: dict[str, Any] = {"mesh": run.mesh(), "mp_policy": HALF}
    fully_shard(model.embed, **options, reshard_after_forward=True)
    for layer in model.layers:
        fully_shard(layer, **options, reshard_after_forward=True)
    fully_shard([model.norm, model.head], **options, reshard_after_forward=False)
    fully_shard(model, **options)
    return train(run, model)


def tied(run: Run) -> list[Any]:
    """The embedding is also the head: both in the root."""
    model = Model(tied=True)
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())
    return train(run, model)


def tied_group(run: Run) -> list[Any]:
    """The embedding is also the head: both in one call."""
    model = Model(tied=True)
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh())
    fully_shard([model.embed, model.norm, model.head], mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())
    return train(run, model)


class Lora(nn.Module):
    def __init__(self, of: nn.Linear) -> None:
        super().__init__()
        self.of = of.requires_grad_(False)
        self.down, self.up = nn.Linear(of.in_features, 2, bias=False), nn.Linear(2, of.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.of(x) + self.up(self.down(x)))


def lora(run: Run) -> list[Any]:
    """Frozen weights with trained parts beside them, of which alone the optimizer knows."""
    model = Model().requires_grad_(False)
    for layer in model.layers:
        layer.mlp[0] = Lora(layer.mlp[0])
        fully_shard(layer, mesh=run.mesh(), mp_policy=HALF)
    fully_shard(model, mesh=run.mesh(), mp_policy=HALF)
    return train(run, model, parameters=lambda model: [each for each in model.parameters() if each.requires_grad])


def mixed_policies(run: Run) -> list[Any]:
    """Norms in 32 bits, layers in 16; each linear layer and each layer apart."""
    model = Model()
    full = MixedPrecisionPolicy(torch.float32, torch.float32, output_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer.first, mesh=run.mesh(), mp_policy=full)
        fully_shard(layer.second, mesh=run.mesh(), mp_policy=full)
        fully_shard(layer, mesh=run.mesh(), mp_policy=HALF)
    fully_shard(model, mesh=run.mesh(), mp_policy=HALF, reshard_after_forward=True)
    return train(run, model)


def accumulates(run: Run) -> list[Any]:
    """Micro-batches of a batch, whose gradients are reduced with the last one; layers are kept between them."""
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())

    def body(model: Any, x: torch.Tensor) -> None:
        parts = [each for each in x.chunk(2) if len(each)]
        for number, part in enumerate(parts):
            last = number + 1 == len(parts)
            model.set_is_last_backward(last)
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            (loss_of(model, part) / len(parts)).backward()

    return train(run, model, body)


def loads(run: Run) -> list[Any]:
    """Values from a checkpoint, parameter by parameter, and whole states on the way."""
    with torch.device("meta"):
        model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())
    sharded: dict[str, Any] = {}
    own: dict[str, Any] = model.state_dict()
    for name, full in Model().state_dict().items():
        sharded[name] = nn.Parameter(distribute_tensor(full, own[name].device_mesh, own[name].placements))
    model.load_state_dict(sharded, assign=True)

    def behind(run: Run, model: Any, x: torch.Tensor) -> None:
        if run.steps_done % 5 == 0:
            found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            assert all(type(each) is torch.Tensor for each in found.values())
            assert found["head.weight"].shape == (9, 10)
            one = model.embed.weight
            full = one.full_tensor() if isinstance(one, DTensor) else one
            assert full.shape == (9, 10)

    return train(run, model, behind=behind)


def siamese(run: Run) -> list[Any]:
    """Two views of a batch in one loss: the model is called once with both."""
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())

    def body(model: Any, x: torch.Tensor) -> None:
        one, two = model(tokens_of(torch.cat([x, x.flip(1)]))).mean(1).chunk(2)
        (1 - functional.cosine_similarity(one, two).mean()).backward()

    return train(run, model, body)


def generates(run: Run) -> list[Any]:
    """Greedy generation on all workers behind a step, and log of norms."""
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh(), reshard_after_forward=False)
    fully_shard(model, mesh=run.mesh())

    def behind(run: Run, model: Any, x: torch.Tensor) -> None:
        if run.steps_done % 8:
            return
        model.eval()
        tokens = tokens_of(x[:1, :3])
        with torch.inference_mode():
            for _ in range(4):
                tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
        model.train()

    return train(run, model, behind=behind)


def called_twice(run: Run) -> list[Any]:
    """A model that is called twice before backward(), as for R-Drop."""
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())
    try:
        return train(run, model, lambda model, x: (loss_of(model, x) + loss_of(model, x)).backward())
    except UserError as error:
        return [{}, str(error)]
