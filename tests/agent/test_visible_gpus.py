"""GPUs that an agent offers where its configuration or CUDA_VISIBLE_DEVICES limits them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elasticd.agent.gpu_numbers import Bound, Known
from elasticd.agent.nvml import Card
from elasticd.agent.visible_gpus import VARIABLE, VisibleGpus
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import Severity

UUIDS = ("GPU-aaaa-0", "GPU-bbbb-1", "GPU-bbcc-2")


def card(index: int, uuid: str, parent: str = "") -> Card:
    return Card(index=index, uuid=uuid, name="x", pci=f"0000:{index:02x}:00.0", parent=parent)


WHOLE = Bound({number: card(number, uuid) for number, uuid in enumerate(UUIDS)}, {})
# GPU 0 is divided into two instances, numbered 0 and 1; then comes a whole GPU.
DIVIDED = Bound({0: card(0, "MIG-x", "GPU-aaaa-0"), 1: card(0, "MIG-y", "GPU-aaaa-0"), 2: card(1, "GPU-bbbb-1")}, {})


def offered(bound: Bound, option: Sequence[str | int] | None = None, variable: str | None = None) -> list[int]:
    visible = VisibleGpus.of(option, {} if variable is None else {VARIABLE: variable})
    left = visible.only(bound)
    return sorted([*left.cards, *left.missing])


@pytest.mark.parametrize(
    ("option", "variable", "numbers"),
    [
        (None, None, [0, 1, 2]),
        (None, "1", [1]),
        (None, "2,0", [0, 2]),
        (None, "GPU-bbbb", [1]),
        (None, "GPU-bb", [1, 2]),
        (None, "", []),
        (None, "-1", []),
        (None, "NoDevFiles", []),
        ([0, "GPU-bbcc-2"], None, [0, 2]),
        ([], None, []),
        ([0, 1], "1,2", [1]),
    ],
)
def test_gpus_are_named_by_index_or_uuid_and_both_places_limit_them(
    option: Sequence[str | int] | None, variable: str | None, numbers: list[int]
) -> None:
    assert offered(WHOLE, option, variable) == numbers


@pytest.mark.parametrize(("named", "numbers"), [("0", [0, 1]), ("GPU-aaaa-0", [0, 1]), ("MIG-y", [1]), ("1", [2])])
def test_a_divided_gpu_stands_for_its_instances_and_an_instance_for_itself(named: str, numbers: list[int]) -> None:
    assert offered(DIVIDED, variable=named) == numbers


def test_an_index_means_the_same_gpu_when_one_before_it_is_not_counted_any_more() -> None:
    gone = Known(number=0, uuid=UUIDS[0], name="x", memory_bytes=0, pci="0000:00:00.0")
    after = Bound({1: card(0, UUIDS[1]), 2: card(1, UUIDS[2])}, {0: (gone, None)})
    moved = Bound(
        {
            1: Card(index=0, uuid=UUIDS[1], pci="0000:01:00.0"),
            2: Card(index=1, uuid=UUIDS[2], pci="0000:02:00.0"),
        },
        after.missing,
    )
    assert offered(moved, variable="1") == [1]
    assert offered(moved, variable="0") == [0], "it is missing, and a trouble, and no other is offered for it"


def test_what_is_named_and_not_there_is_noted_and_nothing_left_is_a_trouble() -> None:
    noted, none = VisibleGpus.of([7], {}).troubles(WHOLE, 1.0)
    assert (noted.severity, noted.code) == (Severity.NOTE, "not-there")
    assert "visible_gpus names 7, which this server does not have" in noted.text
    assert (none.severity, none.code) == (Severity.NO_NEW_WORK, "none-visible")
    assert list(VisibleGpus.of([0], {VARIABLE: "0"}).troubles(WHOLE, 1.0)) == []
    (nothing,) = VisibleGpus.of(None, {VARIABLE: ""}).troubles(WHOLE, 1.0)
    assert "CUDA_VISIBLE_DEVICES (none) leaves no GPU" in nothing.text


@pytest.mark.parametrize("wrong", ["all", "0;1", "GPU", "1.5"])
def test_what_is_neither_an_index_nor_a_uuid_is_refused_with_where_it_stands(wrong: str) -> None:
    with pytest.raises(OperatorError, match=r"visible_gpus: .* is neither the index of a GPU nor a UUID"):
        VisibleGpus.of([wrong], {})
