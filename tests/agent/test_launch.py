"""Which workers may be forked from which warm process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from elasticd.agent.interpreters import find_interpreter, located
from elasticd.agent.warm_key import Interpreter, Launch, key_of, parse

BUFFERED = {"PATH": "/bin"}
ENVIRONMENT = BUFFERED | {"PYTHONUNBUFFERED": "1"}
HERE = Interpreter("/venv/bin/python", "/venv/bin", "/usr/bin/python3.11")


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("python train.py", Launch(False, "train.py", ())),
        ("python3 -u train.py --lr 0.1 -m x", Launch(False, "train.py", ("--lr", "0.1", "-m", "x"))),
        ("/venv/bin/python3.11 /jobs/train.py", Launch(False, "/jobs/train.py", ())),
        ("python -m pack.train -u", Launch(True, "pack.train", ("-u",))),
        ("python -u -m train", Launch(True, "train", ())),
    ],
)
def test_scripts_and_modules_are_recognized(command: str, launch: Launch) -> None:
    assert parse(command.split(" "), ENVIRONMENT) == launch


OTHER_COMMANDS = """python; python -c pass; python -O train.py; python -m; python -m -x; python -; python train; python -u;
python directory; python2 train.py; pypy train.py; torchrun train.py; sh train.py; python-config x.py"""


@pytest.mark.parametrize("command", [command.strip() for command in OTHER_COMMANDS.split(";")])
def test_everything_else_is_executed(command: str) -> None:
    assert parse(command.split(" "), ENVIRONMENT) is None


def test_what_depends_on_more_than_the_variables_is_executed() -> None:
    command = ["python", "train.py"]
    assert parse(command, ENVIRONMENT | {"PYTHONPATH": "/a:/b"}) is not None
    for variables in ({"PYTHONPATH": "lib"}, {"PYTHONPATH": "/a::/b"}, {"PYTHONINSPECT": "1"}):
        assert parse(command, ENVIRONMENT | variables) is None
    assert parse(["python", "-u", "train.py"], BUFFERED) is None
    assert parse(command, BUFFERED) is not None


EARLY = """OMP_NUM_THREADS MKL_CBWR KMP_AFFINITY GOMP_CPU_AFFINITY ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA OPENBLAS_CORETYPE
PYTHONPATH PYTHONHASHSEED LD_PRELOAD LD_LIBRARY_PATH TORCH_LOGS PYTORCH_CUDA_ALLOC_CONF CUDA_HOME LANG LC_ALL HOME
MALLOC_ARENA_MAX"""


@pytest.mark.parametrize("name", EARLY.split())
def test_a_variable_that_acts_when_torch_is_imported_needs_a_process_of_its_own(name: str) -> None:
    assert key_of(HERE, ENVIRONMENT | {name: "x"}) != key_of(HERE, ENVIRONMENT)
    assert key_of(HERE, ENVIRONMENT | {name: "x"}) != key_of(HERE, ENVIRONMENT | {name: "y"})


def test_all_other_variables_are_the_workers_own() -> None:
    other = {"CUDA_VISIBLE_DEVICES": "3", "ELASTICD_WORKER": "a.1", "PATH": "/x", "TMPDIR": "/y", "NCCL_DEBUG": "INFO"}
    other["TORCHELASTIC_ERROR_FILE"] = "/y/error.json"  # differs between workers
    assert key_of(HERE, ENVIRONMENT | other) == key_of(HERE, dict(reversed(ENVIRONMENT.items())))


def test_two_names_of_one_interpreter_share_a_process_and_two_environments_do_not() -> None:
    alias = Interpreter("/venv/bin/python3", "/venv/bin", "/usr/bin/python3.11")
    other = Interpreter("/other/bin/python", "/other/bin", "/usr/bin/python3.11")
    assert key_of(alias, ENVIRONMENT) == key_of(HERE, ENVIRONMENT)
    assert key_of(other, ENVIRONMENT) != key_of(HERE, ENVIRONMENT)


def test_the_interpreter_is_looked_for_as_exec_does(tmp_path: Path) -> None:
    for name in ("plain", "first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "plain" / "python").write_text("not executable")
    (tmp_path / "second" / "python").symlink_to(sys.executable)
    path = ":".join(str(tmp_path / name) for name in ("plain", "first", "second"))
    found = find_interpreter("python", {"PATH": path}, "/")
    assert found == Interpreter(
        str(tmp_path / "second" / "python"), str(tmp_path / "second"), os.path.realpath(sys.executable)
    )
    assert find_interpreter("second/python", {}, str(tmp_path)) == found
    assert find_interpreter(sys.executable, {}, "/") == located(sys.executable)
    assert find_interpreter("python", {"PATH": f"bin:{path}"}, "/") is None
    assert find_interpreter("no-such-program", {"PATH": path}, "/") is None
    assert find_interpreter("./plain/python", {}, str(tmp_path)) is None
