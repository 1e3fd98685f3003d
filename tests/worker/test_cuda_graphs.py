"""CUDA graphs are refused with an alternative. On a machine with a GPU, `make bench-gpu` captures real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from elasticd.protocol.errors import UserError
from elasticd.worker import cuda_graphs

GPU, CPU = torch.device("cuda"), torch.device("cpu")
WITH_GRAPHS = [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"options": {"triton.cudagraphs": True}}]
WITHOUT = [{}, {"mode": "default"}, {"mode": "max-autotune-no-cudagraphs"}, {"backend": "eager"}]


def compiled(**options: Any) -> nn.Module:
    return torch.compile(nn.Linear(2, 2), **options)


def compiled_inside(**options: Any) -> nn.Module:
    return nn.Sequential(nn.ReLU(), torch.compile(nn.Linear(2, 2), **options))


def compiled_in_place(**options: Any) -> nn.Module:
    model = nn.Linear(2, 2)
    model.compile(**options)
    return model


@pytest.mark.parametrize("make", [compiled, compiled_inside, compiled_in_place])
def test_a_model_that_is_compiled_with_graphs_is_refused_and_one_without_is_not(
    make: Callable[..., nn.Module],
) -> None:
    for options in WITH_GRAPHS:
        with pytest.raises(UserError, match=r"captures CUDA graphs.*max-autotune-no-cudagraphs"):
            cuda_graphs.check(make(**options), GPU)
        cuda_graphs.check(make(**options), CPU)
    for options in WITHOUT:
        cuda_graphs.check(make(**options), GPU)


def test_the_module_that_is_compiled_with_graphs_is_named() -> None:
    with pytest.raises(UserError, match=r"^1 is compiled"):
        cuda_graphs.check(compiled_inside(mode="reduce-overhead"), GPU)


def test_whatever_captures_or_replays_is_refused_when_it_does() -> None:
    class Graph:
        """Replaces torch's class, which needs a GPU."""

        capture_begin = torch.cuda.CUDAGraph.capture_begin
        replay = torch.cuda.CUDAGraph.replay

    cuda_graphs.refuse(Graph)
    with pytest.raises(UserError, match=r"captures a CUDA graph: .* torch\.compile\(model\)"):
        Graph().capture_begin(pool=None, capture_error_mode="thread_local")
    with pytest.raises(UserError, match="replays a CUDA graph"):
        Graph().replay()
    assert torch.cuda.CUDAGraph.replay is not Graph.replay, "other processes' graphs are their own"
