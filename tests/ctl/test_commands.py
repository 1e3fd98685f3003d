"""Job specifications that submit derives from a command, before anything runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from elasticd.ctl import commands
from elasticd.ctl.jobfile import Overrides, build
from elasticd.ctl.jobgpus import GpuOptions
from elasticd.protocol.errors import UserError
from elasticd.protocol.model import GpuRange, JobSpec, Processes

PER_GPU, PER_SERVER = Processes.PER_GPU, Processes.PER_SERVER


def made(directory: Path, *command: str, gpus: str | None = None, **options: object) -> JobSpec:
    path = f"{directory / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    overrides = Overrides(gpus=GpuOptions(gpus), command=command, **options)  # type: ignore[arg-type]
    return build(None, overrides, directory, {"PATH": path, "HOME": os.environ.get("HOME", "/")})


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with scripts, and launchers that do nothing."""
    (tmp_path / "plain.py").write_text("import os\nprint(os.getpid())\n")
    (tmp_path / "elastic.py").write_text("def main():\n    import elasticd as elastic\n    elastic.join()\n")
    (tmp_path / "indirect.py").write_text("from helper import train\ntrain()\n")
    (tmp_path / "helper.py").write_text("from elasticd import join\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import elasticd\n")
    (tmp_path / "bin").mkdir()
    for name in ("accelerate", "deepspeed", "mpirun"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def test_a_command_without_more_gets_one_gpu_and_is_not_run_twice(work: Path) -> None:
    spec = made(work, "python", "plain.py")
    assert (spec.gpus, spec.processes, spec.restarts) == (GpuRange(min=1, max=1), PER_GPU, 0)
    assert not spec.must_join
    assert not spec.expected_to_join
    assert made(work, "python", "plain.py", restarts=3).restarts == 3


@pytest.mark.parametrize(
    "command",
    [
        ("python", "elastic.py"),
        ("python", "-u", "-X", "dev", "indirect.py"),
        ("env", "A=1", "python", "-m", "package.train"),
        ("nice", "-n", "python", "elastic.py"),
    ],
)
def test_a_script_that_imports_the_library_is_expected_to_join(work: Path, command: tuple[str, ...]) -> None:
    if command[0] == "nice":
        command = ("nice", *command[2:])
    spec = made(work, *command)
    assert spec.restarts is None
    assert spec.expected_to_join


def test_who_asks_for_a_range_is_expected_to_join(work: Path) -> None:
    assert made(work, "python", "plain.py", gpus="1:4").restarts is None
    assert not made(work, "torchrun", "plain.py", gpus="1:4").expected_to_join


@pytest.mark.parametrize(
    ("command", "gpus", "asked", "per_server"),
    [
        (("torchrun", "--nproc-per-node", "4", "plain.py"), None, 4, 4),
        (("torchrun", "--nproc_per_node=2", "--nnodes=3", "plain.py"), None, 6, 2),
        (("torchrun", "--nproc-per-node", "4", "plain.py"), "8", 8, 4),
        (("torchrun", "--nproc-per-node", "4", "plain.py"), "6", 6, None),
        (("torchrun", "--nproc-per-node", "gpu", "plain.py"), "4", 4, None),
        (("torchrun", "--nnodes", "2", "plain.py"), "8", 8, 4),
        (("torchrun", "plain.py"), "4", 4, None),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "plain.py"), None, 2, 2),
        (("accelerate", "launch", "plain.py"), "4", 4, 4),
        (("deepspeed", "plain.py"), "2", 2, 2),
        (("mpirun", "-np", "4", "plain.py"), "4", 4, 4),
    ],
)
def test_a_launcher_gets_one_process_a_server_and_the_gpus_of_its_options(
    work: Path, command: tuple[str, ...], gpus: str | None, asked: int, per_server: int | None
) -> None:
    spec = made(work, *command, gpus=gpus)
    assert spec.gpus == GpuRange(min=asked, max=asked)
    assert (spec.processes, spec.gpus_per_server, spec.restarts) == (PER_SERVER, per_server, 0)


def test_the_user_has_the_last_word_on_processes(work: Path) -> None:
    assert made(work, "torchrun", "plain.py", processes="per-gpu").processes is PER_GPU
    assert made(work, "python", "plain.py", processes="per-server").processes is PER_SERVER
    with pytest.raises(UserError, match=r"--processes: 'each' is not one of per-gpu, per-server"):
        made(work, "python", "plain.py", processes="each")


def test_what_an_interpreter_lacks_is_said_and_nothing_of_the_script_is_executed(work: Path) -> None:
    python = work / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    (work / "train.py").write_text("import elasticd\nimport torch\nopen('touched', 'w')\n")
    with pytest.raises(UserError, match=r"train.py imports elasticd and torch, and python does not find them"):
        made(work, "python", "train.py")
    told: list[str] = []
    path = f"{work / 'bin'}:/usr/bin:/bin"
    build(None, Overrides(command=("python", "train.py")), work, {"PATH": path}, told.append)
    assert told == [
        "train.py imports elasticd and torch, and python does not find them on this machine: "
        "the job fails unless it does on the servers"
    ]
    made(work, "env", "PYTHONPATH=/elsewhere", "python", "train.py")
    (work / "train.py").write_text("import sys\nsys.path.insert(0, '/elsewhere')\nimport torch\n")
    made(work, "python", "train.py")
    (work / "train.py").write_text("try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    made(work, "python", "train.py")
    assert not (work / "touched").exists()


def test_an_interpreter_that_does_not_answer_is_not_waited_for(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "INTERPRETER_S", 0.1)
    python = work / "bin" / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    (work / "train.py").write_text("import torch\n")
    made(work, "python", "train.py")


def test_a_launcher_that_is_not_there_is_named_with_its_package(work: Path) -> None:
    (work / "bin" / "deepspeed").unlink()
    with pytest.raises(UserError, match=r"no program 'deepspeed': it comes with the package deepspeed"):
        made(work, "deepspeed", "plain.py")


@pytest.mark.parametrize("text", ["\0", "def (", "import elasticd\n" + "(" * 5000, "\xff\xfe"])
def test_a_script_that_cannot_be_parsed_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.py").write_text(text, encoding="latin-1")
    assert commands.imports(tmp_path / "odd.py") == frozenset()


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-c", "python plain.py && python made.py"),
        ("python", "-m", "timeit", "--out", "made.py"),
        ("python", "-uc", "print(1)", "made.py"),
        ("touch", "made.py"),
    ],
)
def test_only_a_script_has_to_be_there_and_no_other_word(work: Path, command: tuple[str, ...]) -> None:
    assert made(work, *command).command == command


@pytest.mark.parametrize("before", [(), ("-u",), ("-W", "ignore")])
def test_a_script_that_is_not_there_is_refused(work: Path, before: tuple[str, ...]) -> None:
    for program in ("python", "torchrun"):
        with pytest.raises(UserError, match=r"there is no file gone\.py in "):
            made(work, *([program, *before] if program == "python" else [program]), "gone.py", "--out", "made.py")


@pytest.mark.parametrize(
    "wrapper",
    [("nice", "-n", "10"), ("env", "-u", "A", "B=1"), ("stdbuf", "-o", "L"), ("timeout", "-k", "5", "1h"), ("nohup",)],
)
def test_what_a_wrapper_starts_is_looked_at_behind_the_options_of_the_wrapper(
    work: Path, wrapper: tuple[str, ...]
) -> None:
    assert made(work, *wrapper, "python", "elastic.py").expected_to_join
    assert made(work, *wrapper, "torchrun", "--nproc-per-node", "4", "plain.py").processes is PER_SERVER


def test_options_of_python_may_stand_in_one_word(work: Path) -> None:
    assert commands.look_at(("python", "-um", "torch.distributed.run", "plain.py")).launcher
    assert commands.look_at(("python", "-m", "package.train")).module == "package.train"


def test_the_words_of_a_shell_give_a_job_no_name(work: Path) -> None:
    assert made(work, "bash", "-c", "python plain.py && python made.py").name == "bash"
    (work / "a b.py").write_text("")
    assert made(work, "python", "a b.py").name == "a-b"


def test_no_file_is_looked_for_where_a_wrapper_changes_the_directory(work: Path) -> None:
    made(work, "env", "-C", "package", "python", "train.py")


@pytest.mark.parametrize("command", [("bash", "job.sh"), ("./job.sh",), ("env", "A=1", "bash", "job.sh", "--x")])
def test_options_that_a_batch_script_states_for_another_scheduler_are_told_to_be_ignored(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gpus=2\npython train.py\n")
    assert "job.sh: '#SBATCH --gpus=2' and other such lines are not read" in commands.ignored_lines(command, tmp_path)
    script.write_text("#!/bin/bash\n# SBATCH is what we had\necho '#SBATCH --gpus=2'\n")
    assert commands.ignored_lines(command, tmp_path) == ""
    with pytest.raises(
        UserError, match=r"^the command line: command: \./job\.sh may not be executed: `chmod \+x \./job"
    ):
        build(None, Overrides(command=("./job.sh",)), tmp_path, dict(os.environ))


@pytest.mark.parametrize(
    ("command", "said", "sure"),
    [
        (
            ("python", "plain.py"),
            "plain.py does not import elasticd: 1 to 4 copies of it, one for each GPU, are started ",
            True,
        ),
        (("python", "elastic.py"), "", False),
        (("python", "indirect.py"), "", False),
        (("python", "-m", "package.train"), "", False),
        (("sleep", "5"), "sleep is not known to call elastic.join(): 1 to 4 copies of it", False),
        (
            ("accelerate", "launch", "plain.py"),
            "accelerate is not known to call elastic.join(): a process on each",
            False,
        ),
    ],
)
def test_a_range_for_a_command_that_does_not_join_is_told_to_run_copies(
    work: Path, command: tuple[str, ...], said: str, sure: bool
) -> None:
    sentence, known = commands.copies(command, GpuRange(min=1, max=4), work, {})
    assert sentence.startswith(said)
    assert bool(sentence) == bool(said)
    assert known is sure
    assert not sentence or sentence.endswith("say --gpus 4 if that is meant")
    assert commands.copies(command, GpuRange(min=4, max=4), work, {}) == ("", False)


def test_more_processes_than_gpus_are_told(work: Path) -> None:
    words = ("torchrun", "--nproc-per-node=4", "plain.py")
    assert commands.more_processes(words, GpuRange(min=2, max=2)).endswith("and the job has 2 GPUs: --gpus 4")
    assert commands.more_processes(words, GpuRange(min=4, max=8)) == ""
    assert commands.more_processes(("torchrun", "plain.py"), GpuRange(min=1, max=1)) == ""
