"""Elementwise optimizers give the same bits on parts of a parameter; all others are refused by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.worker.gradients.update import make_elastic
from elasticd.worker.sharding.elementwise import ELEMENTWISE, WHOLE, check_elementwise, one_thread
from elasticd.worker.sharding.intervals import GRAIN

KINDS = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
NUMEL = 150_003  # more than a thread takes at a time, and no multiple of anything
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}],
    "Adam": [{"weight_decay": 0.01}, {"amsgrad": True, "maximize": True}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
}
LOOPS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def cases() -> Iterator[Any]:
    for name in ELEMENTWISE:
        for options in OPTIONS.get(name, [{}]):
            for loop, flags in LOOPS.items():
                if loop != "fused" or name in ("Adam", "AdamW", "Adagrad", "SGD"):
                    yield pytest.param(name, {**options, **flags}, id=f"{name}-{loop}-{len(options)}")


@functools.cache
def numbers(dtype: torch.dtype) -> list[torch.Tensor]:
    """A parameter, and its gradients in four steps."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(NUMEL, generator=generator, dtype=torch.float64) for _ in range(5)]
    return [each.mul_(10.0**power).to(dtype) for each, power in zip(drawn, (0, -2, -1, 0, 1), strict=True)]


def trained(name: str, options: dict[str, Any], dtype: torch.dtype, cuts: list[int]) -> list[torch.Tensor]:
    """Parameter and state after some steps, of an optimizer over the parts between `cuts`."""
    whole, *gradients = numbers(dtype)
    parts = [
        torch.nn.Parameter(whole[begin:end].clone()) for begin, end in zip([0, *cuts], [*cuts, NUMEL], strict=True)
    ]
    optimizer = KINDS[name](parts, **options)
    for gradient in gradients:
        for part, begin, end in zip(parts, [0, *cuts], [*cuts, NUMEL], strict=True):
            part.grad = gradient[begin:end].clone()
        with one_thread():
            optimizer.step()
    found = [torch.cat([part.detach() for part in parts])]
    for key, value in optimizer.state[parts[0]].items():
        if isinstance(value, torch.Tensor) and value.shape == parts[0].shape:
            found.append(torch.cat([optimizer.state[part][key] for part in parts]))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "options"), list(cases()))
def test_parts_have_the_bits_of_the_whole(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    if name == "SGD" and options.get("fused") and dtype is torch.bfloat16:
        pytest.skip("refused: see test_fused_sgd_in_16_bits_is_refused")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole = trained(name, options, dtype, [])
        for cuts in ([GRAIN * 73], [GRAIN, GRAIN * 2, GRAIN * 51, GRAIN * 140], [64 * 7, 64 * 1001]):
            parts = trained(name, options, dtype, cuts)
            for one, other in zip(whole, parts, strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("name", "options"),
    [each for each in cases() if not each.values[1].get("fused")],  # `fully_shard` refuses these
)
def test_rows_cut_anywhere_have_the_bits_of_the_whole(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    whole = trained(name, options, dtype, [])
    for cuts in ([1], [7, 8, 39, 1003, 70_001, 149_999, NUMEL - 1]):
        parts = trained(name, options, dtype, cuts)
        for one, other in zip(whole, parts, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_every_optimizer_of_torch_is_in_one_of_the_tables() -> None:
    assert {*ELEMENTWISE, *WHOLE} == {name for name in KINDS if name != "Optimizer"}
    assert not {*ELEMENTWISE} & {*WHOLE}


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_one_that_looks_at_whole_parameters_is_refused_by_name(name: str) -> None:
    optimizer = KINDS[name]([torch.nn.Parameter(torch.zeros(4, 4))])
    with pytest.raises(UserError, match=rf"{name}: {WHOLE[name]}"):
        check_elementwise([optimizer])


def test_those_of_others_are_refused() -> None:
    class LAMB(torch.optim.Adam):
        pass

    class Mine(torch.optim.SGD):
        pass

    parameters = [torch.nn.Parameter(torch.zeros(4))]
    check_elementwise([torch.optim.Adam(parameters)])
    with pytest.raises(UserError, match="LAMB: its rate depends on the norm"):
        check_elementwise([torch.optim.Adam(parameters), LAMB(parameters)])
    with pytest.raises(UserError, match=r"Mine: it is no class of torch\.optim"):
        check_elementwise([Mine(parameters)])
    with pytest.raises(UserError, match="differentiable"):
        check_elementwise([torch.optim.SGD(parameters, differentiable=True)])


def test_fused_sgd_in_16_bits_is_refused() -> None:
    """torch 2.13 on a CPU: with momentum, two equal runs give other momentum in the last elements of a parameter."""
    narrow = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    wide = torch.nn.Parameter(torch.zeros(4))
    check_elementwise([torch.optim.SGD([narrow]), torch.optim.SGD([wide], fused=True)])
    with pytest.raises(UserError, match="SGD with fused=True over parameters of 16 bits"):
        check_elementwise([torch.optim.SGD([wide, narrow], fused=True)])


def test_the_class_is_seen_behind_the_runtimes_own() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(4))]
    for kind, wrong in ((torch.optim.AdamW, None), (torch.optim.Adafactor, "Adafactor")):
        optimizer = kind(parameters)
        make_elastic(optimizer, lambda: None, lambda: True)
        if wrong is None:
            check_elementwise([optimizer])
        else:
            with pytest.raises(UserError, match=wrong):
                check_elementwise([optimizer])
