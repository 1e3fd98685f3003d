"""Mixed precision, checkpointing, compiled layers, meta tensors and other options under `fully_shard`: the bits of one worker."""

from __future__ import annotations

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.worker.sharding.elementwise import one_thread
from elasticd.worker.sharding.intervals import Interval
from elasticd.worker.sharding.pieces import Piece, Work, cut, update_padded
from tests.worker.ranks import ALONE, Ranks, also
from tests.worker.test_fully import RESIZED, Script, divided

MODULE = "fsdp_precision_cases"
CASES = [
    "mixed",
    "short",
    "from_meta",
    *also(
        *("compiled_blocks", "accumulated_mixed"),
        *("short_sgd", "reduced_short", "reduced_only", "accumulated", "autocast"),
        *("from_meta_by_function", "by_method", "not_resharded", "resharded_int", "prefetched"),
        *("checkpointed", "checkpointed_reentrant", "checkpointed_behind"),
        *("compiled_aot", "compiled_wrapped", "compiled_whole"),
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_resizes_change_no_bit(ranks: Ranks, case: str) -> None:
    alone = divided(ranks, case, ALONE, module=MODULE)
    assert divided(ranks, case, RESIZED, module=MODULE) == alone


@pytest.mark.cluster
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("case", ["mixed", "short", "reduced_short", "accumulated_mixed", "short_sgd"])
def test_the_number_of_workers_changes_no_bit(ranks: Ranks, case: str, workers: int) -> None:
    alone = divided(ranks, case, ALONE, module=MODULE)
    assert divided(ranks, case, [[0, [*range(workers)]]], module=MODULE) == alone


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.AdamW, torch.optim.Adagrad])
def test_elements_of_16_bits_that_are_cut_anywhere_have_the_bits_of_the_whole(
    kind: type[torch.optim.Optimizer], foreach: bool
) -> None:
    options = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}
    optimizer = kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1, weight_decay=0.01, foreach=foreach, **options)  # type: ignore[call-arg]
    size, draw = 1021, torch.Generator().manual_seed(2)
    values, *gradients = (torch.randn(size, generator=draw).bfloat16() for _ in range(4))

    def trained(cuts: list[int]) -> torch.Tensor:
        whole = Piece(Interval(0, 0, size), {})
        pieces = [cut(whole, Interval(0, a, b)) for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
        own = values.clone()
        for gradient in gradients:
            work = [
                Work(
                    0,
                    0,
                    each,
                    own[each.interval.begin : each.interval.end],
                    gradient[each.interval.begin : each.interval.end],
                )
                for each in pieces
            ]
            with one_thread():
                update_padded(optimizer, optimizer.param_groups, work)
        return own

    for cuts in ([1], [7, 100, 333], [64, 65, 1020]):
        assert torch.equal(trained(cuts).view(torch.int16), trained([]).view(torch.int16))


def test_meta_tensors_without_values_are_refused_by_name() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    with pytest.raises(UserError, match=r"0\.weight is on the meta device.*to_empty"):
        Script(model).prepare()


def test_parameters_of_several_types_are_refused_by_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2).double())
    with pytest.raises(UserError, match="parameters of several types"):
        Script(model).prepare()
