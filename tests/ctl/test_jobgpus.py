"""GPU requests in job files and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticd.ctl.jobdocument import document_of, text_of
from elasticd.ctl.jobfile import Overrides, build
from elasticd.ctl.jobgpus import GpuOptions
from elasticd.protocol.errors import UserError
from elasticd.protocol.model import GpuRange, Idle, JobSpec, Notify

ENVIRON = {"PATH": "/usr/bin:/bin"}


def built(directory: Path, gpus: str, options: GpuOptions | None = None) -> JobSpec:
    file = directory / "job.yaml"
    file.write_text(f"command: sleep 1\n{gpus}\n")
    return build(file, Overrides(gpus=options or GpuOptions()), directory, ENVIRON)


def asked(spec: JobSpec) -> tuple[int, int, tuple[str, ...], int, int | None]:
    return spec.gpus.min, spec.gpus.max, spec.gpu_types, spec.gpu_memory_bytes, spec.gpus_per_server


def test_type_memory_and_gpus_per_server_are_taken_over(tmp_path: Path) -> None:
    spec = built(tmp_path, "gpus: {min: 4, max: 8, type: [A100, V100], memory: 40GiB, per_server: 4}")
    assert asked(spec) == (4, 8, ("A100", "V100"), 40 << 30, 4)
    assert spec.virtual_workers == 8
    assert asked(built(tmp_path, "gpus: {max: 2, type: GTX 1080, memory: 7.5GB}")) == (
        1,
        2,
        ("GTX 1080",),
        7_500_000_000,
        None,
    )
    assert asked(built(tmp_path, "gpus: 3")) == (3, 3, (), 0, None)


def test_with_gpus_per_server_a_job_has_at_least_one_server(tmp_path: Path) -> None:
    assert built(tmp_path, "gpus: {max: 8, per_server: 4}").gpus == GpuRange(min=4, max=8)
    assert built(tmp_path, "", GpuOptions(per_server=2)).gpus == GpuRange(min=2, max=2)


@pytest.mark.parametrize("given", ["gpus: 2:8", "gpus: 2-8", "gpus: {min: 2, max: 8}"])
def test_a_range_may_be_written_as_in_slurm_too(tmp_path: Path, given: str) -> None:
    assert built(tmp_path, given).gpus == GpuRange(min=2, max=8)


def test_a_file_may_name_only_the_type_and_gets_one_gpu_as_with_the_option(tmp_path: Path) -> None:
    assert asked(built(tmp_path, "gpus: {type: A100}")) == (1, 1, ("A100",), 0, None)
    assert asked(built(tmp_path, "gpus: {per_server: 4}")) == (4, 4, (), 0, 4)


def test_an_option_wins_over_its_field_alone(tmp_path: Path) -> None:
    file = "gpus: {min: 4, max: 8, type: A100, memory: 40GiB, per_server: 4}"
    assert asked(built(tmp_path, file, GpuOptions(gpus="12"))) == (12, 12, ("A100",), 40 << 30, 4)
    assert asked(built(tmp_path, file, GpuOptions(types=("V100,T4", "P100")))) == (
        4,
        8,
        ("V100", "T4", "P100"),
        40 << 30,
        4,
    )
    assert asked(built(tmp_path, file, GpuOptions(memory="16 GiB", per_server=2))) == (4, 8, ("A100",), 16 << 30, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{max: 8, kind: A100}", ["gpus", "'kind'", "type, memory, per_server"]),
        ("{min: 2}", ["gpus", "max is missing"]),
        ("{max: eight}", ["gpus.max", "'eight'", "whole number"]),
        ("{max: 8, type: 100}", ["gpus.type", "100", "such as A100"]),
        ("{max: 8, type: []}", ["gpus.type", "such as A100"]),
        ("{max: 8, type: ['-']}", ["gpus.type", "'-'", "such as A100"]),
        ("{max: 8, memory: 40}", ["gpus.memory", "40", "40GiB"]),
        ("{max: 8, memory: 0GiB}", ["gpus.memory", "40GiB"]),
        ("{max: 8, memory: lots}", ["gpus.memory", "'lots'", "40GiB"]),
        ("{max: 8, per_server: 0}", ["gpus.per_server", "0", "1 to 4096"]),
        ("{max: 8, per_server: 3}", ["gpus.per_server", "maximum of 8 GPUs", "multiple of 3"]),
        ("{min: 2, max: 8, per_server: 4}", ["gpus.per_server", "minimum of 2 GPUs", "multiple of 4"]),
    ],
)
def test_a_mistake_is_refused_with_file_and_field(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        built(tmp_path, f"gpus: {text}")
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / 'job.yaml'}: ")
    assert all(word in message for word in words), message


def test_a_mistake_in_an_option_names_the_option(tmp_path: Path) -> None:
    for options, name in (
        (GpuOptions(types=("A100,",)), "--gpu-type"),
        (GpuOptions(memory="much"), "--gpu-memory"),
        (GpuOptions(per_server=0), "--gpus-per-server"),
        (GpuOptions(gpus="many"), "--gpus"),
    ):
        with pytest.raises(UserError, match=f"^{name}: "):
            built(tmp_path, "gpus: 4", options)


def test_cores_and_memory_of_each_worker_are_taken_over_and_written_back(tmp_path: Path) -> None:
    spec = built(tmp_path, "cpus: 2.5\nmemory: 16GiB")
    assert (spec.cpus, spec.memory_bytes) == (2.5, 16 << 30)
    (tmp_path / "again.yaml").write_text(text_of(spec))
    assert build(tmp_path / "again.yaml", Overrides(), tmp_path, ENVIRON) == spec
    by_options = build(tmp_path / "job.yaml", Overrides(cpus=4, memory="1GiB"), tmp_path, ENVIRON)
    assert (by_options.cpus, by_options.memory_bytes) == (4.0, 1 << 30)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cpus: 0", "cpus: 0 is not a number of cores from 0.01 to 65536"),
        ("cpus: many", "cpus: 'many' is not a number of cores from 0.01 to 65536"),
        ("cpus: .nan", "cpus: nan is not a number of cores from 0.01 to 65536"),
        ("cpus: true", "cpus: True is not a number of cores from 0.01 to 65536"),
        ("memory: 16", "memory: 16 is not an amount of memory such as 40GiB or 16GB"),
        ("memory: 1MiB", "memory: '1MiB' is too little for a process: at least 16 MiB"),
    ],
)
def test_cores_or_memory_that_are_none_are_refused(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        built(tmp_path, line)
    assert str(raised.value) == f"{tmp_path}/job.yaml: {words}"


def test_notices_are_named_and_written_back(tmp_path: Path) -> None:
    spec = built(tmp_path, "notify: [end, promise]")
    assert spec.notify == (Notify.END, Notify.PROMISE)
    (tmp_path / "again.yaml").write_text(text_of(spec))
    assert build(tmp_path / "again.yaml", Overrides(), tmp_path, ENVIRON) == spec
    assert build(tmp_path / "job.yaml", Overrides(notify="start, end"), tmp_path, ENVIRON).notify == (
        Notify.START,
        Notify.END,
    )
    with pytest.raises(UserError, match="--notify: 'ends' is none of start, end, fail, promise, idle"):
        build(tmp_path / "job.yaml", Overrides(notify="ends"), tmp_path, ENVIRON)


def test_a_job_file_may_say_what_is_done_about_its_idle_gpus(tmp_path: Path) -> None:
    spec = built(tmp_path, "idle: warn 10m, suspend 1h30m")
    assert spec.idle == Idle(warn_s=600.0, suspend_s=5400.0)
    assert document_of(spec)["idle"] == "warn 10m, suspend 1h30m"
    with pytest.raises(UserError, match=r"job.yaml: idle: 'kill 10m' is not one of warn, shrink, suspend"):
        built(tmp_path, "idle: kill 10m")
