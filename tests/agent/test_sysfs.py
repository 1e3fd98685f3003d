"""Readings of the kernel's device tree for network cards and GPUs; odd entries are ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticd.agent.sysfs import above, nics, numa_node

BRIDGE = "pci0000:00/0000:00:01.0"


def device(root: Path, path: str, node: str = "0") -> Path:
    directory = root / "devices" / path
    directory.mkdir(parents=True)
    (directory / "numa_node").write_text(f"{node}\n")
    devices = root / "bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / directory.name).symlink_to(directory)
    return directory


def interface(root: Path, kind: str, name: str, on: Path, speed: str | None = None) -> Path:
    directory = on / kind / name
    directory.mkdir(parents=True)
    (directory / "device").symlink_to(on)
    if speed is not None:
        (directory / "speed").write_text(speed)
    (root / "class" / kind).mkdir(parents=True, exist_ok=True)
    (root / "class" / kind / name).symlink_to(directory)
    return directory


def test_a_device_tells_what_is_above_it(tmp_path: Path) -> None:
    card = device(tmp_path, f"{BRIDGE}/0000:01:00.0/0000:02:00.0/0000:03:00.0", node="1")
    assert above(tmp_path, "0000:03:00.0") == ("pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0")
    assert numa_node(card) == 1


@pytest.mark.parametrize("address", ["", "0000:99:00.0", "../../etc", "x"])
def test_of_a_device_that_is_none_nothing_is_known(tmp_path: Path, address: str) -> None:
    device(tmp_path, f"{BRIDGE}/0000:03:00.0")
    assert above(tmp_path, address) == ()
    assert above(tmp_path / "nothing", address) == ()


def test_a_machine_with_one_node_says_minus_one_and_that_is_unknown(tmp_path: Path) -> None:
    assert numa_node(device(tmp_path, f"{BRIDGE}/0000:03:00.0", node="-1")) is None


def test_a_card_without_a_cable_has_no_speed(tmp_path: Path) -> None:
    interface(tmp_path, "net", "eth0", device(tmp_path, f"{BRIDGE}/0000:03:00.0"), speed="-1\n")
    interface(tmp_path, "net", "eth1", device(tmp_path, f"{BRIDGE}/0000:04:00.0"))
    assert [(nic.name, nic.bytes_per_s) for nic in nics(tmp_path)] == [("eth0", 0.0), ("eth1", 0.0)]


def test_an_infiniband_adapter_tells_its_rate_under_the_name_of_its_interface(tmp_path: Path) -> None:
    first, second = device(tmp_path, f"{BRIDGE}/0000:03:00.0"), device(tmp_path, f"{BRIDGE}/0000:04:00.0")
    interface(tmp_path, "net", "ib0", first, speed="-1\n")
    for name, card in (("mlx5_0", first), ("mlx5_1", second)):
        port = interface(tmp_path, "infiniband", name, card) / "ports/1"
        port.mkdir(parents=True)
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    assert [(nic.name, nic.bytes_per_s) for nic in nics(tmp_path)] == [("ib0", 25e9), ("mlx5_1", 25e9)]


def test_interfaces_that_are_no_cards_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "class/net/lo").mkdir(parents=True)
    virtual = device(tmp_path, f"{BRIDGE}/0000:03:00.1")
    interface(tmp_path, "net", "eth9", virtual, speed="1000\n")
    (virtual / "physfn").symlink_to(virtual.parent)
    assert nics(tmp_path) == ()


def test_a_card_of_a_virtual_machine_is_found_below_its_driver(tmp_path: Path) -> None:
    card = device(tmp_path, f"{BRIDGE}/0000:03:00.0", node="-1")
    (card / "virtio0").mkdir()
    below = interface(tmp_path, "net", "eth0", card / "virtio0", speed="10000\n")
    assert (below / "device").resolve() == card / "virtio0"
    found = nics(tmp_path)
    assert [(nic.name, nic.pci, nic.bytes_per_s) for nic in found] == [("eth0", "0000:03:00.0", 1.25e9)]
