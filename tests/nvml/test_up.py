"""`elasticctl up --gpu-model`: a cluster with stand-in GPUs, where jobs really train, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from elasticd.ctl import offers
from elasticd.ctl.drivers import DriverTrouble
from elasticd.ctl.standins import library
from elasticd.protocol.errors import UserError

ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))
TRAIN = Path(__file__).parents[1] / "cluster" / "train_small.py"
PATIENCE_S = 300.0  # on a loaded machine

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """The command, with its own directory."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICCTL_")}

    def call(*arguments: str, code: int = 0, path: str | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [ELASTICCTL, "--dir", str(tmp_path / "c"), *arguments],
            cwd=tmp_path,
            env={**environment, **({} if path is None else {"PATH": path})},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    yield call
    call("down", "--purge", "--yes")


@pytest.mark.cluster
def test_a_job_trains_on_a_server_whose_gpus_are_stand_ins(run: Run, tmp_path: Path) -> None:
    assert "stand-ins (a100): there are none of these here" in run("up", "--gpu-model", "a100").stdout
    assert "A100-SXM4-40GB (stand-in)" in run("servers").stdout
    drawn = run("topology", "local-1").stdout
    assert "workers compute on the CPU here" in drawn
    assert "GPU 7  0000:bd:00.0  31.5 GB/s" in drawn
    assert "NV12" in drawn
    out = tmp_path / "out"
    command = (sys.executable, str(TRAIN), str(out), "--epochs", "2", "--size", "32")
    run("submit", "--name", "small", "--gpus", "2", "--virtual-workers", "2", "--wait", "--", *command)
    job = json.loads(run("status", "--json", "--all").stdout)["jobs"][0]
    assert job["phase"] == "finished", job
    assert {(worker["server"], worker["gpu"]) for worker in job["past_workers"]} == {("local-1", 0), ("local-1", 1)}
    told = json.loads(run("topology", "--json").stdout)["servers"][0]
    assert {gpu["kind"] for gpu in told["gpus"]} == {"cpu"}
    assert told["gpus"][0]["pci"] == "0000:07:00.0"


@pytest.mark.cluster
def test_several_models_are_several_servers_and_a_stopped_cluster_may_get_others(run: Run, tmp_path: Path) -> None:
    run("up", "--gpu-model", "gtx1080,mixed")
    found = json.loads(run("servers", "--json").stdout)["servers"]
    assert [len(view["server"]["gpus"]) for view in found] == [4, 4]
    uuids = {gpu["uuid"] for view in found for gpu in view["server"]["gpus"]}
    assert len(uuids) == 8
    assert "--gpu-model a100" in run("up", "--gpu-model", "a100", code=2).stderr
    run("down")
    run("up", "--gpu-model", "v100", "--servers", "1")
    assert [len(view["server"]["gpus"]) for view in _alive(run)] == [8]
    run("down")
    assert "2 CPU slots, as was asked for" in run("up", "--gpus", "2").stdout
    assert [gpu["name"] for gpu in _alive(run)[0]["server"]["gpus"]] == ["CPU slot"] * 2
    options = yaml.safe_load((tmp_path / "c" / "local-1.yaml").read_text())
    assert options["cpu_slots"] == 2
    assert not {"nvml_library", "sysfs", "worker_device"} & set(options)


def _alive(run: Run) -> list[dict[str, dict[str, list[dict[str, str]]]]]:
    return [view for view in json.loads(run("servers", "--json").stdout)["servers"] if view["alive"]]


def test_an_unknown_model_and_a_missing_compiler_are_said_and_nothing_is_started(run: Run, tmp_path: Path) -> None:
    said = run("up", "--gpu-model", "tpu", code=2).stderr
    assert "there are no stand-ins of 'tpu': a100, a100-mig, gtx1080, mixed, v100" in said
    said = run("up", "--gpu-model", "a100", code=2, path=str(tmp_path)).stderr
    assert "install gcc" in said
    assert said.count("\n") == 1
    assert "give one of them" in run("up", "--gpu-model", "a100", "--gpus", "2", code=2).stderr


@pytest.mark.parametrize(
    ("trouble", "slots", "words"),
    [
        (DriverTrouble("NVML Shared Library Not Found", absent=True), True, "there is no NVIDIA driver here"),
        (DriverTrouble("Driver/library version mismatch"), False, "does not work (Driver/library version mismatch)"),
        (DriverTrouble(""), False, "the GPUs that the NVIDIA driver tells of"),
    ],
)
def test_up_offers_cpu_slots_only_where_there_is_no_driver_and_says_which(
    monkeypatch: pytest.MonkeyPatch, trouble: DriverTrouble, slots: bool, words: str
) -> None:
    monkeypatch.setattr(offers.drivers, "look", lambda: trouble)
    offer = offers.plan(None, None, None)
    assert (offer.slots == os.cpu_count()) is slots
    assert (offer.slots is None) is not slots
    assert words in offer.text


def test_slots_and_stand_ins_exclude_each_other() -> None:
    with pytest.raises(UserError, match="give one of them"):
        offers.plan(2, "a100", None)


def test_the_command_line_names_each_model_that_there_is() -> None:
    done = subprocess.run(
        [ELASTICCTL, "up", "--help"],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    for model in library.models():
        assert model in done.stdout


@pytest.mark.cluster
def test_a_gpu_that_is_not_counted_any_more_keeps_its_number_and_takes_no_work(run: Run, tmp_path: Path) -> None:
    run("up", "--gpu-model", "gtx1080")
    before = [gpu["uuid"] for gpu in _alive(run)[0]["server"]["gpus"]]
    run("down")
    with (tmp_path / "c" / "standins" / "local-1-gtx1080" / "server.txt").open("a") as file:
        file.write("gpu 1 gone\n")
    run("up")
    view = json.loads(run("servers", "--json").stdout)["servers"][0]
    assert [gpu["uuid"] for gpu in view["server"]["gpus"]] == before
    assert list(view["barred"]) == ["1"]
    assert "gpu-missing" in run("topology", "local-1").stdout


@pytest.mark.cluster
def test_a_server_whose_driver_does_not_work_is_there_with_the_reason(run: Run, tmp_path: Path) -> None:
    run("up", "--gpu-model", "gtx1080")
    run("down")
    (tmp_path / "c" / "local-1" / "gpus.json").unlink()
    with (tmp_path / "c" / "standins" / "local-1-gtx1080" / "server.txt").open("a") as file:
        file.write("init 9\n")
    run("up")
    view = json.loads(run("servers", "--json").stdout)["servers"][0]
    assert view["server"]["gpus"] == []
    assert "no NVIDIA driver" in run("servers").stdout
    assert "no NVIDIA driver" in run("topology").stdout
