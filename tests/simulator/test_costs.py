"""Files of change costs and servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticd.protocol.errors import UserError
from elasticd.runtime import config
from elasticd.simulator import clusters, costs


def read_costs(directory: Path, text: str) -> costs.Costs:
    path = directory / "costs.yaml"
    path.write_text(text)
    return costs.build(config.load(path, costs.CostsFile, UserError), str(path))


def read_cluster(directory: Path, text: str) -> clusters.Cluster:
    path = directory / "cluster.yaml"
    path.write_text(text)
    return clusters.build(config.load(path, clusters.ClusterFile, UserError), str(path))


def times(found: costs.Costs) -> tuple[float, float, float]:
    return found.start_s, found.ready_s, found.pause_s


def test_stop_and_resume_costs_much_more_than_the_background() -> None:
    assert costs.STOP_RESUME.pause_s >= 100 * costs.BACKGROUND.pause_s
    assert times(costs.NONE) == (0.0, 0.0, 0.0)


def test_models_differ_from_the_default_and_the_default_from_the_base(tmp_path: Path) -> None:
    text = "base: background\ndefault: {start_s: 5}\nmodels:\n  Vgg: {pause_s: 1}\n  Resnet: {start_s: 0, ready_s: 2}\n"
    found = read_costs(tmp_path, text)
    assert times(found) == (5.0, costs.JOIN_S, costs.PAUSE_S)
    assert times(found.of("Vgg")) == (5.0, costs.JOIN_S, 1.0)
    assert times(found.of("Resnet")) == (0.0, 2.0, costs.PAUSE_S)
    assert found.of("unheard of") is found


def test_presets_neither_wait_for_gpus_nor_end_late_but_a_file_may_say_so(tmp_path: Path) -> None:
    assert all((preset.release_s, preset.end_s) == (0.0, 0.0) for preset in costs.PRESETS.values())
    found = read_costs(
        tmp_path, "base: background\ndefault: {release_s: 0.5, end_s: 0.25}\nmodels:\n  Vgg: {end_s: 1}\n"
    )
    assert (found.release_s, found.end_s, found.of("Vgg").release_s, found.of("Vgg").end_s) == (0.5, 0.25, 0.5, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: free\n", "base: there is no preset 'free'; there are none, stop-resume, background"),
        ("default: {start_s: -1}\n", "default.start_s: expected `float` >= 0"),
        ("default: {start: 1}\n", "default.start: is unknown; start_s is meant?"),
        ("models: {Vgg: {pause_s: long}}\n", "pause_s: expected `float | null`, got `str`"),
        ("pause_s: 3\n", "line 1: pause_s: is unknown"),
    ],
)
def test_wrong_costs_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        read_costs(tmp_path, text)
    assert message in str(refused.value)
    assert "costs.yaml" in str(refused.value)


def test_servers_may_differ_and_be_many(tmp_path: Path) -> None:
    found = read_cluster(tmp_path, "servers:\n- {count: 2, gpus: 4}\n- {name: big, gpus: 8}\n")
    assert [(server.server, len(server.gpus)) for server in found] == [("big", 8), ("server-0", 4), ("server-1", 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("servers: []\n", "servers: expected `array` of length >= 1"),
        ("servers: [{gpus: 0}]\n", "servers[0].gpus: expected `int` >= 1"),
        ("servers: [{count: 3}]\n", "missing required field `gpus`"),
        ("servers: [{name: a, gpus: 1}, {name: a, gpus: 1}]\n", "two servers are named a"),
        ("servers: [{count: 65536, gpus: 65536}]\n", "at most 65536 can be simulated"),
        ("{}\n", "missing required field `servers`"),
    ],
)
def test_wrong_servers_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        read_cluster(tmp_path, text)
    assert message in str(refused.value)
    assert "cluster.yaml" in str(refused.value)
