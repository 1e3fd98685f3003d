"""Scripts in the manner of public ones under `fully_shard`: the bits of one worker alone, or a refusal."""

from __future__ import annotations

import pytest

from tests.worker.ranks import ALONE, Ranks, also
from tests.worker.test_fully import RESIZED, divided

WAYS = [
    *("example", "generates"),
    *also("loads", "titan", "tied", "tied_group", "lora", "mixed_policies", "accumulates", "siamese"),
]


@pytest.mark.parametrize("way", WAYS)
def test_resizes_change_no_bit_of_a_script_as_people_write_it(ranks: Ranks, way: str) -> None:
    alone = divided(ranks, way, ALONE, module="fsdp_ways_cases")
    assert divided(ranks, way, RESIZED, module="fsdp_ways_cases") == alone


def test_a_model_that_is_called_twice_for_one_loss_is_refused_with_the_line_to_write(ranks: Ranks) -> None:
    (told,) = divided(ranks, "called_twice", ALONE, module="fsdp_ways_cases")
    assert "called once, with both inputs (torch.cat)" in told
