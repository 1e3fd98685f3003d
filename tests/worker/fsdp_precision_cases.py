"""Scripts under `fully_shard` with options that change how layers are gathered, computed and reduced. There is no same
script without `fully_shard`, so they are compared with one worker alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fsdp_cases import Transformer, plain_tensors
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.nn import functional
from training_cases import EPOCHS, Points

from elasticd.worker.run import Run

ADAMW = partial(torch.optim.AdamW, lr=0.02)


def train(
    run: Run,
    divide: Callable[[Run, Transformer], None],
    options: dict[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    autocast: bool = False,
    parts: int = 1,
    optimizer: Any = ADAMW,
    make: Callable[[], Transformer] = Transformer,
) -> list[Any]:
    model = make().to(dtype)
    divide(run, model)
    trained: Any = optimizer(model.parameters())
    model, trained, batches = run.prepare(model, trained, Points(), batch_size=5, **(options or {"max_grad_norm": 0.5}))
    lowest: list[float] = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            for part in range(parts):
                if parts > 1:
                    model.set_requires_gradient_sync(part == parts - 1)
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = functional.cross_entropy(model(x[part::parts].to(dtype)).float(), y[part::parts])
                (loss / parts).backward()
            trained.step()
            trained.zero_grad()
        model.eval()
        with torch.no_grad():
            lowest += [float(model(Points().x.to(dtype)).float().sum())]
        model.train()
    run.finish()
    return [plain_tensors(model.state_dict()), lowest]


def layers(run: Run, model: Transformer, **options: Any) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=run.mesh(), **options)
    fully_shard(model, mesh=run.mesh(), **options)


def by_policy(*types: torch.dtype | None, **more: Any) -> Callable[[Run, Transformer], None]:
    return partial(layers, mp_policy=MixedPrecisionPolicy(*types, **more))


def prefetching(run: Run, model: Transformer) -> None:
    layers(run, model)
    first, second = model.blocks
    first.set_modules_to_forward_prefetch([second])  # type: ignore[operator]
    second.set_modules_to_backward_prefetch([first])  # type: ignore[operator]


def wrapped(run: Run, model: Transformer, kind: CheckpointImpl = CheckpointImpl.NO_REENTRANT) -> None:
    """As torchtitan: checkpoint_wrapper around each block, and fully_shard around that."""
    for number, block in enumerate(model.blocks):
        model.blocks[number] = checkpoint_wrapper(block, checkpoint_impl=kind)
    layers(run, model)


def applied(run: Run, model: Transformer) -> None:
    """fully_shard first, and then checkpointing, as PyTorch's example."""
    layers(run, model)
    apply_activation_checkpointing(model, check_fn=lambda each: each in set(model.blocks))


def compiled(run: Run, model: Transformer, backend: str = "eager") -> None:
    for block in model.blocks:
        block.compile(backend=backend)
    layers(run, model)


def compiled_outside(run: Run, model: Transformer) -> None:
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend="eager")
    layers(run, model)


mixed = partial(train, divide=by_policy(torch.bfloat16, torch.float32))
reduced_short = partial(train, divide=by_policy(torch.bfloat16))
reduced_only = partial(train, divide=by_policy(None, torch.bfloat16))
not_resharded = partial(train, divide=partial(layers, reshard_after_forward=False))
resharded_int = partial(train, divide=partial(layers, reshard_after_forward=1))
prefetched = partial(train, divide=prefetching)
autocast = partial(train, divide=layers, autocast=True)
accumulated = partial(train, divide=layers, parts=2)
accumulated_mixed = partial(train, divide=by_policy(torch.bfloat16, torch.float32), parts=2)
checkpointed = partial(train, divide=wrapped)
checkpointed_reentrant = partial(train, divide=partial(wrapped, kind=CheckpointImpl.REENTRANT))
checkpointed_behind = partial(train, divide=applied)
short = partial(train, divide=layers, dtype=torch.bfloat16)
short_sgd = partial(
    train, divide=layers, dtype=torch.bfloat16, optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9)
)
compiled_blocks = partial(train, divide=compiled)
compiled_aot = partial(train, divide=partial(compiled, backend="aot_eager"))
compiled_wrapped = partial(train, divide=compiled_outside)


def on_meta() -> Transformer:
    with torch.device("meta"):
        return Transformer()


def materialize(run: Run, model: Transformer, dtype: torch.dtype | None = None) -> None:
    """As PyTorch's tutorial: fully_shard of meta tensors, then to_empty and the modules' own initialization."""
    layers(run, model)
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    for module in model.modules():
        for name in ("reset_parameters", "_reset_parameters"):
            if hasattr(module, name):
                getattr(module, name)()


def init_weights(run: Run, model: Transformer) -> None:
    """As torchtitan: one function fills the parameters, of which some are DTensors."""
    layers(run, model)
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.trunc_normal_(parameter, std=0.02) if parameter.dim() > 1 else torch.nn.init.ones_(parameter)


def forward_method(run: Run, model: Transformer) -> None:
    layers(run, model)
    body = model.forward

    def logits(x: torch.Tensor) -> torch.Tensor:
        return body(x)

    model.logits = logits  # type: ignore[assignment]
    register_fsdp_forward_method(model, "logits")
    model.forward = lambda x: model.logits(x)  # type: ignore[method-assign,operator]


def whole_compiled(run: Run, model: Transformer) -> None:
    layers(run, model)
    model.compile(backend="eager")


from_meta = partial(train, divide=materialize, make=on_meta)
from_meta_by_function = partial(train, divide=init_weights, make=on_meta)
by_method = partial(train, divide=forward_method)
compiled_whole = partial(train, divide=whole_compiled)
