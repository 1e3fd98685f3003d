"""Batch scripts: which lines are read, what they mean here, and which are named as not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticd.ctl.batchscripts import script_of
from elasticd.protocol.errors import UserError


def script(tmp_path: Path, *lines: str, first: str = "#!/bin/bash") -> Path:
    path = tmp_path / "My job.sh"
    path.write_text("\n".join([first, *lines, "python train.py", "#SBATCH --time=1"]))
    return path


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("#SBATCH --job-name=ResNet_50", ["--name", "resnet-50"]),
        ("#SBATCH -J x", ["--name", "x"]),
        ("#SBATCH --gres=gpu:2", ["--gpus", "2", "--gpus-per-server", "2"]),
        ("#SBATCH --gres gpu:a100:4   # four", ["--gpus", "4", "--gpus-per-server", "4", "--gpu-type", "A100"]),
        ("#SBATCH --gres=gpu", ["--gpus", "1", "--gpus-per-server", "1"]),
        ("#SBATCH -N 2 --gpus-per-node=4", ["--gpus", "8", "--gpus-per-server", "4"]),
        ("#SBATCH --gpus-per-node=v100:2", ["--gpus", "2", "--gpus-per-server", "2", "--gpu-type", "V100"]),
        ("#SBATCH -G4", ["--gpus", "4"]),
        ("#SBATCH --gpus=h100:4", ["--gpus", "4", "--gpu-type", "H100"]),
        ("#SBATCH --time=30", ["--time", "1800s"]),
        ("#SBATCH -t 30:10", ["--time", "1810s"]),
        ("#SBATCH --time=24:00:00", ["--time", "86400s"]),
        ("#SBATCH --time 2-12", ["--time", "216000s"]),
        ("#SBATCH --time 1-02:30", ["--time", "95400s"]),
        ("#SBATCH --time 1-02:30:05", ["--time", "95405s"]),
        ("#SBATCH --array=0-99%8", ["--array", "0-99%8"]),
        ("#SBATCH -a 1,5", ["--array", "1,5"]),
        ("#SBATCH --signal=B:USR1@120", ["--warn", "120s"]),
        ("#SBATCH --signal=SIGUSR1", ["--warn", "60s"]),
        ("#SBATCH --constraint=a100", ["--gpu-type", "A100"]),
        ("#SBATCH --no-requeue", ["--restarts", "0"]),
        ('#ELASTICCTL --env "A=b c" --gpus 1:4', ["--env", "A=b c", "--gpus", "1:4"]),
        ("##SBATCH --gpus=2", []),
        ("# comment", []),
        ("#SBATCH --nodes=1 --ntasks=1", []),
        ("#SBATCH --mail-type=BEGIN,END", ["--notify", "start,end"]),
        ("#SBATCH --cpus-per-task=8 --mem=32G", ["--cpus", "8", "--memory", "32GiB"]),
        ("#SBATCH -c 4 --mem-per-cpu=2048", ["--cpus", "4", "--memory", "8192MiB"]),
        ("#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.01-py3", ["--image", "nvcr.io/nvidia/pytorch:24.01-py3"]),
        ("#SBATCH --container-image pytorch/pytorch # isn't much", ["--image", "docker.io/pytorch/pytorch"]),
    ],
)
def test_a_line_that_means_the_same_here_is_read(tmp_path: Path, line: str, options: list[str]) -> None:
    found = script_of(script(tmp_path, line))
    assert found is not None
    own = found.options[found.options.index("per-server") + 1 :]
    translated = found.options[2 : found.options.index("--processes")]
    assert (translated + own, found.notes) == (options, [])
    assert found.options[:2] == ["--name", "my-job"], "unless a line says otherwise"


@pytest.mark.parametrize(
    "option",
    [
        "--output=%j.out",
        "--mem=0",
        "--mem-per-cpu=4G",
        "--mail-type=TIME_LIMIT",
        "--partition=gpu",
        "--cpus-per-task=some",
        "--dependency=afterok:77",
        "--exclusive",
        "--time=soon",
        "--gres=fpga:1",
        "--signal=TERM@30",
        "--requeue",
        "--nodes=2-4",
        "--licenses=a",
    ],
)
def test_each_line_that_is_not_read_is_named(tmp_path: Path, option: str) -> None:
    found = script_of(script(tmp_path, f"#SBATCH {option}"))
    assert found is not None
    assert found.options == ["--name", "my-job", "--processes", "per-server"]
    (note,) = found.notes
    assert note.startswith(f"#SBATCH {option} is not read: ")


def test_variables_and_commands_of_slurm_are_named(tmp_path: Path) -> None:
    found = script_of(script(tmp_path, "", "srun python a.py $SLURM_PROCID ${SLURM_ARRAY_TASK_ID}", "#SBATCH -G 2"))
    assert found is not None
    assert "--gpus" not in found.options, "lines after the first command do not count"
    variables, srun = found.notes
    assert "SLURM_ARRAY_TASK_ID (here ELASTICCTL_ARRAY_INDEX), SLURM_PROCID (here RANK)" in variables
    assert "srun" in srun
    pbs = script_of(script(tmp_path, "#PBS -l walltime=1:00"))
    assert pbs is not None
    assert "'#PBS -l walltime=1:00' and other such lines are not read" in pbs.notes[0]


def test_the_command_is_the_interpreter_and_the_script(tmp_path: Path) -> None:
    for first, words in (
        ("#!/bin/bash -l", ("/bin/bash", "-l")),
        ("#!/usr/bin/env python3", ("python3",)),
        ("#!/usr/bin/env -S python3 -u", ("python3", "-u")),
    ):
        path = script(tmp_path, first=first)
        found = script_of(path)
        assert found is not None
        assert found.command == (*words, str(path))


def test_a_file_without_an_interpreter_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    for name in ("train.py", "nothing.sh", "."):
        assert script_of(tmp_path / name) is None


@pytest.mark.parametrize("line", ["#ELASTICCTL --env 'A=b", "#SBATCH gpus=2"])
def test_a_line_that_cannot_be_read_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match=r"My job\.sh: line 3: "):
        script_of(script(tmp_path, "# a comment", line))


def test_line_ends_of_dos_are_refused_where_a_shell_would_read_them(tmp_path: Path) -> None:
    path = tmp_path / "my job.sh"
    path.write_bytes(b"#!/bin/bash -l\r\n#SBATCH -G 1\r\npython train.py --lr 0.1\r\n")
    with pytest.raises(UserError, match=r"end as in DOS .*sed -i 's/\\r\$//' '.*my job\.sh'"):
        script_of(path)
    path.write_bytes(b"#!/usr/bin/env python3\r\n#ELASTICCTL --gpus 2\r\nprint(1)\r\n")
    found = script_of(path)
    assert found is not None
    assert found.options[-2:] == ["--gpus", "2"]
