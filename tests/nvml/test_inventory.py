"""An agent's inventory of described servers: stable GPU numbers, troubles, wiring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticd.agent import cuda_devices, gpu_numbers
from elasticd.agent.gpu_numbers import Known, bind
from elasticd.agent.inventory_refresh import fits
from elasticd.agent.nvml import Card, Counted
from elasticd.agent.topology import ranges
from elasticd.ctl.standins import library, sysfs
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import Gpu, GpuKind, NvLinks, Severity, Trouble, Wiring

LOOK = """
import json, msgspec, sys
from pathlib import Path
from elasticd.agent.topology import discover
from elasticd.protocol.model import GpuKind
here = Path(sys.argv[1])
from elasticd.agent.visible_gpus import VisibleGpus
visible = VisibleGpus.of(None, {"CUDA_VISIBLE_DEVICES": sys.argv[3]} if sys.argv[3:] else {})
found = discover(here, 1.0, kind=GpuKind(sys.argv[2]), root=here / "sys", visible=visible)
cpus = {str(gpu): cpus for gpu, cpus in found.cpus.items()}
print(json.dumps(msgspec.to_builtins([found.gpus, found.troubles, found.wiring, cpus])))
"""

Make = Callable[..., Any]
GIB = 1 << 30


class Found(msgspec.Struct, array_like=True):
    gpus: tuple[Gpu, ...]
    troubles: tuple[Trouble, ...]
    wiring: Wiring
    cpus: dict[str, tuple[int, ...]]


class Machine:
    """A described server, and the state directory of its agent."""

    def __init__(self, standin: Any, directory: Path, kind: str = "cuda") -> None:
        self.say, self.directory, self._standin, self._kind = standin.say, directory, standin, kind
        sysfs.write(standin.file.read_text(), directory / "sys")

    def look(self, *visible: str) -> Found:
        """Findings of an agent that starts now. `visible`: its CUDA_VISIBLE_DEVICES; none: the variable is unset."""
        return msgspec.convert(self._standin.run(LOOK, str(self.directory), self._kind, *visible), Found)


@pytest.fixture
def machine(standin: Make, tmp_path: Path) -> Make:
    return lambda model, *lines, kind="cuda": Machine(standin(model, *lines), tmp_path, kind)


# -------------------------------------------------------------------------------------------------------------- reports


def test_an_a100_server_tells_its_wiring(machine: Make) -> None:
    found = machine("a100").look()
    assert found.troubles == ()
    assert [(gpu.index, gpu.kind, gpu.memory_bytes) for gpu in found.gpus] == [
        (i, GpuKind.CUDA, 40 * GIB) for i in range(8)
    ]
    first = found.wiring.gpus[0]
    assert (first.pci, first.node, first.cpus, first.pcie) == ("0000:07:00.0", 3, "48-63,176-191", "4.0 x16")
    assert first.above == ("pci0000:00", "0000:00:01.1", "0000:01:00.0", "0000:02:00.0")
    assert first.pcie_bytes_per_s == pytest.approx(31.5e9, rel=0.01)
    assert first.nvlinks == (NvLinks(count=12, peer=None, bytes_per_s=300e9),)
    assert found.gpus[0].place.nvlinks == (1, 2, 3, 4, 5, 6, 7)
    assert found.cpus["0"] == (*range(48, 64), *range(176, 192))
    assert [nic.name for nic in found.wiring.nics] == [f"ib{i}" for i in range(8)]
    assert (found.wiring.nics[0].bytes_per_s, found.wiring.nics[0].node) == (25e9, 3)
    assert found.wiring.driver == "550.54.15"


def test_a_v100_server_tells_how_many_nvlinks_go_where(machine: Make) -> None:
    wiring = machine("v100").look().wiring
    assert [(links.peer, links.count) for links in wiring.gpus[0].nvlinks] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert wiring.gpus[0].nvlinks[2].bytes_per_s == pytest.approx(2 * 25.781e9)


def test_gtx_1080_have_no_nvlink_and_share_no_switch(machine: Make) -> None:
    found = machine("gtx1080").look()
    assert all(gpu.nvlinks == () and len(gpu.above) == 2 for gpu in found.wiring.gpus)
    assert [(gpu.place.socket, gpu.place.switch) for gpu in found.gpus] == [(0, 0), (0, 1), (2, 2), (2, 3)]


def test_a_server_with_several_types_tells_each(machine: Make) -> None:
    gpus = machine("mixed").look().gpus
    assert [gpu.name.split()[0] for gpu in gpus] == ["V100-PCIE-32GB", "V100-PCIE-32GB", "RTX", "T4"]
    assert len({gpu.memory_bytes for gpu in gpus}) == 3


def test_only_visible_gpus_are_offered_and_wired_whatever_is_wrong_with_the_others(machine: Make) -> None:
    server = machine("a100", "gpu 5 error 15")
    found = server.look("2,3")
    assert [gpu.index for gpu in found.gpus] == [2, 3]
    assert found.gpus[0].place.nvlinks == (3,)
    assert found.troubles == ()
    assert [trouble.code for trouble in server.look("").troubles] == ["none-visible"]
    assert len(server.look().gpus) == 8


@pytest.mark.parametrize(("model", "count"), [("a100", 8), ("a100-mig", 1)])
def test_what_cuda_can_show_one_process_of_what_the_driver_tells(machine: Make, model: str, count: int) -> None:
    found = machine(model).look()
    for own in found.gpus:
        seen = cuda_devices.shown(own, found.gpus)
        assert len(seen) == count
        assert cuda_devices.listed(seen).split(",") == [gpu.uuid for gpu in (found.gpus if count > 1 else [own])]


def test_mig_instances_are_gpus_of_their_own_and_tell_their_parent(machine: Make) -> None:
    found = machine("a100-mig").look()
    assert [gpu.uuid[:4] for gpu in found.gpus] == ["MIG-"] * 4 + ["GPU-"]
    assert [gpu.memory_bytes >> 20 for gpu in found.gpus] == [19968, 9856, 4864, 4864, 40960]
    parents = [gpu.parent for gpu in found.wiring.gpus]
    assert len(set(parents[:4])) == 1
    assert parents[0].startswith("GPU-")
    assert parents[4] == ""
    assert [gpu.place.switch for gpu in found.gpus] == [0, 0, 0, 0, 4]


def test_workers_that_compute_on_the_cpu_are_told_so_and_bound_to_no_processors(machine: Make) -> None:
    found = machine("a100", kind="cpu").look()
    assert {gpu.kind for gpu in found.gpus} == {GpuKind.CPU}
    assert found.gpus[3].uuid.startswith("GPU-")
    assert found.cpus == {}


@pytest.mark.parametrize("model", library.models())
def test_each_described_server_is_found_whole_and_twice_the_same(machine: Make, model: str) -> None:
    server = machine(model)
    first, again = server.look(), server.look()
    assert first == again
    assert first.troubles == ()
    assert [gpu.index for gpu in first.gpus] == list(range(len(first.gpus)))
    assert len({gpu.uuid for gpu in first.gpus}) == len(first.gpus)


# ----------------------------------------------------------------------------------------------------------------- troubles


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("init 9", "no-driver", "cpu_slots"),
        ("init 18", "nvml-failed", "restart the server"),
        ("gpus 0", "no-gpu", "lspci"),
    ],
)
def test_a_server_without_a_working_driver_offers_nothing_and_says_why(
    machine: Make, line: str, code: str, words: str
) -> None:
    found = machine(None, line).look()
    assert found.gpus == ()
    assert [(t.code, t.gpu, t.severity, t.since_s) for t in found.troubles] == [(code, None, Severity.NO_NEW_WORK, 1.0)]
    assert words in found.troubles[0].text


def test_a_driver_that_hangs_does_not_hold_the_agent_up(standin: Make, tmp_path: Path) -> None:
    code = LOOK.replace("here = ", "import elasticd.agent.topology as t\nt.ANSWERED_WITHIN_S = 0.5\nhere = ")
    told = standin("gtx1080", "gpu * slow 5000").run(code, str(tmp_path), "cuda")
    found = msgspec.convert(told, Found)
    assert found.gpus == ()
    assert [trouble.code for trouble in found.troubles] == ["nvml-failed"]
    assert "not answered" in found.troubles[0].text


def test_gpus_keep_their_numbers_while_the_driver_is_broken(machine: Make) -> None:
    server = machine("gtx1080")
    before = server.look().gpus
    server.say("init 18")
    during = server.look()
    assert [(gpu.index, gpu.uuid) for gpu in during.gpus] == [(gpu.index, gpu.uuid) for gpu in before]
    assert [trouble.code for trouble in during.troubles] == ["nvml-failed"]
    server.say("init 0")
    assert server.look().gpus == before


def test_a_gpu_that_does_not_answer_at_the_start_keeps_number_and_uuid_and_is_a_trouble(machine: Make) -> None:
    server = machine("v100")
    before = server.look().gpus
    server.say("gpu 3 error 15")
    found = server.look()
    assert [(gpu.index, gpu.uuid) for gpu in found.gpus] == [(gpu.index, gpu.uuid) for gpu in before]
    assert [(t.code, t.gpu, t.severity.value) for t in found.troubles] == [("gpu-lost", 3, "stop")]
    assert found.troubles[0].text.startswith("it has fallen off the bus: restart the server")
    assert 3 not in found.gpus[0].place.nvlinks


def test_a_gpu_that_does_not_tell_its_memory_is_offered_and_its_memory_unknown(machine: Make) -> None:
    unified = (
        "gpu * name NVIDIA GB10",
        "gpu * fails nvmlDeviceGetMemoryInfo 3",
        "gpu * fails nvmlDeviceGetMemoryInfo_v2 3",
    )
    found = machine("a100", *unified).look()
    assert found.troubles == ()
    assert {(gpu.name, gpu.memory_bytes) for gpu in found.gpus} == {("NVIDIA GB10", 0)}
    assert all(gpu.uuid for gpu in found.gpus)


def test_gpus_that_fail_alike_have_troubles_in_the_same_words(machine: Make) -> None:
    found = machine("a100", "gpu * fails nvmlDeviceGetMemoryInfo 999").look()
    assert len(found.troubles) == 8
    assert len({trouble.text for trouble in found.troubles}) == 1


def test_a_gpu_that_has_never_answered_is_a_trouble_too(machine: Make) -> None:
    found = machine("gtx1080", "gpu 1 fails nvmlDeviceGetUUID 999").look()
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 3]
    assert [(t.code, t.gpu) for t in found.troubles] == [("gpu-error", 1)]
    assert found.gpus[1].uuid == ""


def test_the_gpus_behind_one_that_is_not_counted_any_more_keep_their_numbers(machine: Make) -> None:
    server = machine("a100")
    before = server.look().gpus
    server.say("gpu 2 gone")
    found = server.look()
    assert [(gpu.index, gpu.uuid) for gpu in found.gpus] == [(gpu.index, gpu.uuid) for gpu in before]
    assert [(t.code, t.gpu) for t in found.troubles] == [("gpu-missing", 2)]
    assert [gpu.index for gpu in found.wiring.gpus] == [0, 1, 3, 4, 5, 6, 7]
    assert found.gpus[3].place.nvlinks == (0, 1, 4, 5, 6, 7)


def test_a_gpu_in_mig_mode_without_an_instance_is_a_trouble_of_that_gpu(machine: Make) -> None:
    found = machine(None, "gpus 1", "gpu 0 divided").look()
    assert [(t.code, t.gpu) for t in found.troubles] == [("mig-empty", 0)]


# ------------------------------------------------------------------------------------------------------------------ numbers


def card(index: int, uuid: str, pci: str = "", parent: str = "") -> Card:
    return Card(index=index, uuid=uuid, name="x", pci=pci or f"0000:{index:02x}:00.0", parent=parent)


def known(number: int, uuid: str, pci: str, parent: str = "") -> Known:
    return Known(number=number, uuid=uuid, name="x", memory_bytes=0, pci=pci, parent=parent)


def test_a_gpu_put_into_the_place_of_another_gets_a_number_of_its_own() -> None:
    before = (known(0, "A", "0000:00:00.0"), known(1, "B", "0000:01:00.0"))
    bound = bind(before, [card(0, "A"), card(1, "C")])
    assert {number: each.uuid for number, each in bound.cards.items()} == {0: "A", 1: "C"}
    assert bound.missing == {}
    bound = bind(before, [card(0, "C", "0000:07:00.0"), card(1, "A", "0000:00:00.0"), card(2, "B", "0000:01:00.0")])
    assert {number: each.uuid for number, each in bound.cards.items()} == {0: "A", 1: "B", 2: "C"}


def test_a_gpu_that_is_missing_keeps_its_number_from_others() -> None:
    before = (known(0, "A", "0000:00:00.0"), known(1, "B", "0000:01:00.0"))
    bound = bind(before, [card(0, "A"), card(1, "N", "0000:09:00.0")])
    assert {number: each.uuid for number, each in bound.cards.items()} == {0: "A", 2: "N"}
    assert list(bound.missing) == [1]
    assert [each.uuid for each in bound.known] == ["A", "B", "N"]


def test_more_gpus_that_do_not_answer_than_are_missing_are_all_there() -> None:
    silent = [Card(index=1, error="lost"), Card(index=2, error="lost")]
    bound = bind((known(1, "B", "0000:01:00.0"),), [card(0, "A"), *silent])
    assert sorted([*bound.cards, *bound.missing]) == [0, 1, 2]


def test_mig_instances_that_were_removed_are_forgotten_and_their_numbers_are_free() -> None:
    before = (known(0, "MIG-1", "0000:00:00.0", "A"), known(1, "MIG-2", "0000:00:00.0", "A"))
    bound = bind(before, [card(0, "MIG-3", parent="A")])
    assert {number: each.uuid for number, each in bound.cards.items()} == {0: "MIG-3"}
    assert bound.missing == {}
    whole = bind(before, [card(0, "A")])
    assert {number: each.uuid for number, each in whole.cards.items()} == {0: "A"}


def test_a_record_that_cannot_be_read_stops_the_agent_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text("[{")
    with pytest.raises(OperatorError, match=r"gpus\.json"):
        gpu_numbers.load(tmp_path)


def test_processors_are_written_as_the_kernel_does() -> None:
    assert ranges((0, 1, 2, 5, 64, 65)) == "0-2,5,64-65"
    assert ranges(()) == ""


A, B = "GPU-a", "GPU-b"


@pytest.mark.parametrize(
    ("now", "outdated"),
    [
        (Counted("1", frozenset({A, B}), frozenset({(B, "MIG-1")})), False),
        (Counted("1", frozenset({A}), frozenset()), False),  # the other one is lost
        (Counted("2", frozenset({A, B}), frozenset({(B, "MIG-1")})), True),
        (Counted("1", frozenset({A, B, "GPU-c"}), frozenset({(B, "MIG-1")})), True),
        (Counted("1", frozenset({A, "GPU-c"}), frozenset()), True),
        (Counted("1", frozenset({A, B}), frozenset({(B, "MIG-1"), (B, "MIG-2")})), True),
        (Counted("1", frozenset({A, B}), frozenset()), True),
        (Counted("1", frozenset({A, B}), frozenset({(A, ""), (B, "MIG-1")})), True),
    ],
)
def test_an_inventory_is_out_of_date_where_more_or_something_else_answers(now: Counted, outdated: bool) -> None:
    before = Counted("1", frozenset({A, B}), frozenset({(B, "MIG-1")}))
    assert now.outdates(before) is outdated


COUNT = """
import json, sys
from pathlib import Path
from elasticd.agent import nvml
from elasticd.agent.topology import discover
found = discover(Path(sys.argv[1]), 1.0)
with nvml.session(None):
    now = nvml.count()
print(json.dumps([found.counted == now, len(now.gpus), len(now.parts)]))
"""


@pytest.mark.parametrize(
    ("model", "lines", "gpus", "parts"),
    [
        ("a100", (), 8, 0),
        ("a100", ("gpu 3 divided",), 8, 1),
        ("a100", ("gpu 3 error 15",), 7, 0),
        ("gtx1080", (), 4, 0),
        ("a100-mig", (), None, None),
    ],
)
def test_a_count_is_what_the_inventory_was_made_of(standin: Make, tmp_path, model, lines, gpus, parts) -> None:
    same, *found = standin(model, *lines).run(COUNT, str(tmp_path))
    assert same
    if gpus is not None:
        assert found == [gpus, parts]


def test_a_gpu_with_a_worker_must_be_there_under_its_number() -> None:
    def gpu(index: int, uuid: str) -> Gpu:
        return Gpu(index=index, kind=GpuKind.CUDA, name="A100", uuid=uuid)

    before = (gpu(0, A), gpu(1, B))
    assert fits(before, (gpu(0, A), gpu(1, "GPU-c"), gpu(2, "GPU-d")), [0])
    assert not fits(before, (gpu(0, A), gpu(1, "GPU-c")), [1])
    assert not fits(before, (gpu(0, B), gpu(1, A)), [0])
    assert not fits(before, (gpu(1, B),), [0, 1])
