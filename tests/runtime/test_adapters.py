"""InfiniBand adapters that a process can use, and their compatibility."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticd.protocol.model import Adapter
from elasticd.runtime.adapters import adapters, described, go_together, usable


def plug(
    root: Path, name: str, state: str = "4: ACTIVE", layer: str = "InfiniBand", rate: str = "200 Gb/sec (4X HDR)"
) -> None:
    port = root / "class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    for file, text in (("state", state), ("link_layer", layer), ("rate", rate)):
        (port / file).write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plug(tmp_path, "mlx5_0")
    plug(tmp_path, "mlx5_1", state="1: DOWN", rate="10 Gb/sec (4X)")
    plug(tmp_path, "mlx5_10", layer="Ethernet", rate="25 Gb/sec (1X EDR)")
    return tmp_path


def test_each_port_tells_its_state_layer_and_rate(root: Path) -> None:
    assert adapters(root) == (
        Adapter(name="mlx5_0:1", link_layer="InfiniBand", state="ACTIVE", bytes_per_s=25e9),
        Adapter(name="mlx5_1:1", link_layer="InfiniBand", state="DOWN", bytes_per_s=1.25e9),
        Adapter(name="mlx5_10:1", link_layer="Ethernet", state="ACTIVE", bytes_per_s=3.125e9),
    )
    assert adapters(root / "nowhere") == ()
    assert described(adapters(root)) == "1x InfiniBand 200 Gbit/s, 1x Ethernet 25 Gbit/s, 1x InfiniBand 10 Gbit/s"
    assert described(()) == "none"


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["mlx5_0:1", "mlx5_10:1"]),
        ({"NCCL_IB_DISABLE": "0"}, ["mlx5_0:1", "mlx5_10:1"]),
        ({"NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_NET": "Socket"}, []),
        ({"NCCL_IB_HCA": "mlx5_1"}, ["mlx5_10:1"]),
        ({"NCCL_IB_HCA": "=mlx5_1"}, []),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1"}, ["mlx5_0:1"]),
        ({"NCCL_IB_HCA": "=mlx5_0:2"}, []),
        ({"NCCL_IB_HCA": "^mlx5_1"}, ["mlx5_0:1"]),
        ({"NCCL_IB_HCA": "^=mlx5_10"}, ["mlx5_0:1"]),
    ],
)
def test_a_process_uses_ports_with_a_link_that_its_environment_leaves(
    root: Path, environ: dict[str, str], names: list[str]
) -> None:
    assert [each.name for each in usable(environ, root)] == names


def test_an_adapter_whose_device_file_is_not_there_is_not_usable(root: Path) -> None:
    """As in a container that was given one of two (nccl #2428)."""
    for number, name in enumerate(("mlx5_0", "mlx5_10")):
        verbs = root / f"class/infiniband_verbs/uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{name}\n")
    (root / "dev/infiniband").mkdir(parents=True)
    os.mknod(root / "dev/infiniband/uverbs1")
    assert [each.name for each in usable({}, root, root / "dev")] == ["mlx5_10:1"]


@pytest.mark.parametrize(
    ("sides", "together"),
    [
        ([[], []], True),
        ([["InfiniBand"], ["InfiniBand", "InfiniBand"]], True),
        ([["InfiniBand", "Ethernet"], ["Ethernet"]], True),
        ([["InfiniBand"], []], False),
        ([["InfiniBand"], ["Ethernet"]], False),
        ([], True),
    ],
)
def test_adapters_with_a_link_layer_in_common_go_together(sides: list[list[str]], together: bool) -> None:
    assert go_together(sides) is together
