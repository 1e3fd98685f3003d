"""The cause of a failed command: the root exception, under the later output of launchers and libraries."""

from __future__ import annotations

import json
import os
import socket
import sys
import textwrap
from pathlib import Path

import pytest

from elasticd.agent import causes
from elasticd.protocol import exits
from tests.forked import Scripts

TRACEBACK = """
Traceback (most recent call last):
  File "/home/ann/train.py", line 3, in <module>
    raise ValueError("label 17 is out of range")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: label 17 is out of range
"""
SAID = "ValueError: label 17 is out of range"


def cause(text: str, exit_code: int = 1, recorded: str = "") -> str:
    found = causes.Cause()
    for line in textwrap.dedent(text).strip("\n").split("\n"):
        found.take(line.encode())
    return found.text(exit_code, recorded)


def marked(rank: int, text: str) -> str:
    return "\n".join(f"[rank{rank}]: {line}" for line in text.strip("\n").split("\n"))


TORCHRUN_END = """
W1128 03:24:57.596000 23670 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 23796 closing signal SIGTERM
E1128 03:24:57.598000 23670 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 23797)
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/venv/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 23796)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 23796
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_03:24:57
  host      : localhost
  rank      : {rank} (local_rank: 1)
  exitcode  : {code} (pid: 23797)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
TORCHRUN = TORCHRUN_END.format(rank=1, code=1)
ACCELERATE = """
Traceback (most recent call last):
  File "/venv/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/venv/accelerate/commands/launch.py", line 763, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/venv/bin/python', 'train.py']' returned non-zero exit status 1.
"""
LOST = """
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29071
"""
GROUP = """
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 4, in <module>
  |     raise group
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "train.py", line 2, in <module>
    |     raise ValueError("label 17 is out of range")
    | ValueError: label 17 is out of range
    +------------------------------------
"""
LOADER = """
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    for batch in loader:
  File "/venv/torch/_utils.py", line 733, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "train.py", line 5, in __getitem__
    raise ValueError("label 17 is out of range")
ValueError: label 17 is out of range

"""
CHAINED = """
Traceback (most recent call last):
  File "train.py", line 2, in <module>
    {}["x"]
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 4, in <module>
    raise ValueError("label 17 is out of range")
ValueError: label 17 is out of range
"""
SYNTAX = """
  File "train.py", line 3
    def f(
         ^
SyntaxError: '(' was never closed
"""
STATE_DICT = """
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    model.load_state_dict(state)
RuntimeError: Error(s) in loading state_dict for Linear:
\tsize mismatch for weight: copying a param with shape torch.Size([1, 3])
"""
THROWN = """
terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: an illegal memory access was encountered
Exception raised from c10_cuda_check_implementation at CUDAException.cpp:43
"""
WANDB = """
wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.
wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)
wandb: Find logs at: ./wandb/run-20261128/logs
"""


@pytest.mark.parametrize(
    ("text", "exit_code", "told"),
    [
        (TRACEBACK, 1, SAID),
        (TRACEBACK + TORCHRUN, 1, f"rank 1: {SAID}"),
        (marked(1, TRACEBACK) + "\n" + TORCHRUN, 1, f"rank 1: {SAID}"),
        (marked(1, TRACEBACK) + "\n" + marked(0, LOST) + "\n" + TORCHRUN, 1, f"rank 1: {SAID}"),
        (marked(3, TRACEBACK), 1, f"rank 3: {SAID}"),
        (TRACEBACK + ACCELERATE, 1, SAID),
        (TRACEBACK + TORCHRUN + ACCELERATE, 1, f"rank 1: {SAID}"),
        (ACCELERATE, 1, ACCELERATE.strip().split("\n")[-1]),
        (marked(0, LOST) + TORCHRUN_END.format(rank=5, code=-9), 1, "rank 5: killed by SIGKILL"),
        (TORCHRUN, 1, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        (TRACEBACK + "============================================================", 1, SAID),
        (TRACEBACK + " 45%|####      | 450/1000 [00:12<00:15, 35.21it/s]", 1, SAID),
        (TRACEBACK + "Epoch 3: 100%|##########| 12/12 [00:01<00:00]", 1, SAID),
        (
            TRACEBACK + "node-7:431:1023 [0] NCCL WARN [Service thread] Accept failed Resource temporarily unavailable",
            1,
            SAID,
        ),
        (TRACEBACK + "[rank0]:[W1128 ProcessGroup.cpp:1] Warning: destroy_process_group() was not called", 1, SAID),
        (TRACEBACK + WANDB, 1, SAID),
        (TRACEBACK + "Segmentation fault (core dumped)", 139, SAID),
        (TRACEBACK + "Segmentation fault (core dumped)", -11, SAID),
        (TRACEBACK + "saving what there is ...", 1, SAID),
        (GROUP, 1, SAID),
        (LOADER, 1, SAID),
        (CHAINED, 1, SAID),
        (SYNTAX, 1, "SyntaxError: '(' was never closed"),
        (
            STATE_DICT,
            1,
            "RuntimeError: Error(s) in loading state_dict for Linear: "
            "size mismatch for weight: copying a param with shape torch.Size([1, 3])",
        ),
        (THROWN, -6, "c10::Error: CUDA error: an illegal memory access was encountered"),
        (
            "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lr",
            2,
            "train.py: error: unrecognized arguments: --lr",
        ),
        ("no such data set\n" + "-" * 60, 3, "no such data set"),
        ("no such data set\n 45%|####  | 4/9 [00:12<00:15]", 3, "no such data set"),
        ("=" * 60, 3, "=" * 60),
        ("", 3, ""),
        (TRACEBACK + "tried again\n" * 2000 + "the disk is full", 1, "the disk is full"),
        (TRACEBACK + "tried again\n" * 100 + "the disk is full", 3, "the disk is full"),
        (TRACEBACK, -9, ""),
        (TRACEBACK, -15, ""),
        ("INFO: epoch 3\nERROR: no data", 1, "ERROR: no data"),
        ("Traceback (most recent call last):", 1, "Traceback (most recent call last):"),
    ],
)
def test_the_cause_is_named(text: str, exit_code: int, told: str) -> None:
    assert cause(text, exit_code) == told


def test_what_a_launcher_has_found_goes_first() -> None:
    assert cause(LOST + TORCHRUN, 1, recorded=SAID) == f"rank 1: {SAID}"


@pytest.mark.parametrize(
    "code", [value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)]
)
def test_the_library_s_own_ends_say_their_reason_last(code: int) -> None:
    assert cause(TRACEBACK + "global_step is 150 on s-1.0 and 0 on s-1.3", code).startswith("global_step is 150")


def test_what_is_kept_of_a_log_is_bounded() -> None:
    found = causes.Cause()
    for number in range(500):
        for line in marked(number, TRACEBACK).split("\n"):
            found.take(line.encode() + b"x" * 10_000)
    kept = json.dumps({name: repr(value) for name, value in vars(found).items()})
    assert len(kept) < 1 << 20


# ---------------------------------------------------------------------------------------------------------------- error files


def document(message: object) -> str:
    return json.dumps({"message": message})


WRITTEN = document(
    {"message": SAID, "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "1795836302"}, "errorCode": 1}
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WRITTEN, SAID),
        (document(SAID), SAID),
        (
            document({"message": "RuntimeError: Error(s) in loading:\n\tsize mismatch"}),
            "RuntimeError: Error(s) in loading: size mismatch",
        ),
        (document(None), "None"),
        ("", ""),
        ("{", ""),
        ("[" * 100_000, ""),
        (json.dumps([1]), ""),
        (json.dumps({"message": {}}), ""),
        (document("x" * (300 << 10)), ""),
    ],
)
def test_an_error_file_is_read_whatever_is_in_it(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(text)
    assert causes.recorded(str(path), 0.0) == told


def test_an_error_file_that_is_none_is_not_read(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text(WRITTEN)
    (tmp_path / "link").symlink_to(real)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("link", "pipe", "directory", "nothing", "a\0b"):
        assert causes.recorded(str(tmp_path / name), 0.0) == ""
    assert causes.recorded("", 0.0) == ""
    assert causes.recorded("/dev/zero", 0.0) == ""
    os.utime(real, (1000.0, 1000.0))
    assert causes.recorded(str(real), 2000.0) == "", "it is from an earlier run"
    assert causes.recorded(str(real), 900.0) == SAID


# ------------------------------------------------------------------------------------------------------------- real launchers

PLAIN = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("label 17 is out of range")
time.sleep(60)
"""
RECORDED = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("label 17 is out of range")
    time.sleep(60)

main()
"""
KILLED = """
import os, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("script", "options", "told", "written"),
    [
        (PLAIN, (), f"rank 1: {SAID}", False),
        (PLAIN, ("--tee", "3"), f"rank 1: {SAID}", False),
        (RECORDED, (), f"rank 1: {SAID}", True),
        (KILLED, (), "rank 1: killed by SIGKILL", False),
    ],
    ids=["plain", "tee", "recorded", "killed"],
)
def test_torchrun_is_understood(
    scripts: Scripts, tmp_path: Path, script: str, options: tuple[str, ...], told: str, written: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    error = tmp_path / "error.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = ("--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1]), "--nproc-per-node", "2")
    torchrun = Path(sys.executable).with_name("torchrun")
    variables = {"TORCHELASTIC_ERROR_FILE": str(error)}
    ended = scripts.run(torchrun, *where, *options, str(path), variables=variables)
    found = causes.Cause()
    for line in ended.stderr.splitlines():
        found.take(line.encode())
    assert error.exists() is written
    assert found.text(ended.returncode, causes.recorded(str(error), 0.0)) == told, ended.stderr
