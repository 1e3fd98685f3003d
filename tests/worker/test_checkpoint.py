"""Checkpoints: whole or not there, whatever happens to the writer."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from elasticd.protocol.errors import OperatorError
from elasticd.worker.checkpoint import STALE_AFTER_S, CheckpointWriter, latest, load


def write(directory: Path, *steps: int, keep: int = 10) -> None:
    writer = CheckpointWriter(directory, keep)
    for step in steps:
        writer.save(step, {"counters": {"applied": step}}, [torch.full((3,), float(step)), torch.tensor(step)])
        assert writer.wait() is None


def steps_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    write(tmp_path / "made" / "on the way", 41)
    document = load(tmp_path / "made" / "on the way" / "step-000000000041.pt")
    assert document.header == {"counters": {"applied": 41}}
    assert [tensor.tolist() for tensor in document.tensors] == [[41.0] * 3, 41]


def test_only_the_newest_are_kept_in_the_order_of_their_steps(tmp_path: Path) -> None:
    write(tmp_path, 5, 999, 1_000_000_000_000, 12, keep=2)
    assert steps_in(tmp_path) == ["step-000000000999.pt", "step-1000000000000.pt"]
    document = latest(tmp_path)
    assert document is not None
    assert document.header["counters"]["applied"] == 1_000_000_000_000


def test_no_directory_and_an_empty_one_have_no_checkpoint(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04", None], ids=["empty", "junk", "zip", "half"])
def test_a_file_that_cannot_be_read_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    write(tmp_path, 1, 2)
    newest = tmp_path / "step-000000000002.pt"
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with caplog.at_level(logging.WARNING):
        document = latest(tmp_path)
    assert document is not None
    assert document.header["counters"]["applied"] == 1
    assert "step-000000000002.pt: not a checkpoint" in caplog.text
    with pytest.raises(OperatorError, match="not a checkpoint that can be read"):
        load(newest)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-000000000001.pt"
    torch.save({"header": Path("x"), "tensors": []}, path)
    with pytest.raises(OperatorError, match="not a checkpoint"):
        load(path)


def test_a_file_of_torch_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-000000000001.pt"
    torch.save([1, 2], path)
    with pytest.raises(OperatorError, match="not a checkpoint"):
        load(path)


def test_other_files_are_left_alone_and_stale_temporary_ones_removed(tmp_path: Path) -> None:
    others = ["model.pt", "step-1.pt", "step-000000000007.pt.part", ".step-000000000007.pt.123"]
    stale = tmp_path / ".step-000000000003.pt.77"
    for name in [*others, stale.name]:
        (tmp_path / name).write_bytes(b"")
    os.utime(stale, (0, time.time() - 2 * STALE_AFTER_S))
    write(tmp_path, 8, keep=1)
    assert steps_in(tmp_path) == sorted([*others, "step-000000000008.pt"])


def test_what_is_saved_may_change_once_it_is_copied_and_what_changes_earlier_is_copied_at_once(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, 1)
    big, small = torch.zeros(5_000_000), torch.zeros(3)
    writer.save(1, {}, [big, small], mutable=[small])
    small.fill_(1.0)
    writer.settle()
    big.fill_(1.0)
    assert writer.wait() is None
    document = latest(tmp_path)
    assert document is not None
    assert not any(tensor.any() for tensor in document.tensors)


def test_a_failed_write_is_reported_once_and_stops_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    writer = CheckpointWriter(blocked, 1)
    assert writer.save(1, {}, []) is None
    error = writer.wait()
    assert error is not None
    assert "the checkpoint of step 1 could not be written" in error
    blocked.unlink()
    assert writer.save(2, {}, []) is None
    assert writer.wait() is None
    assert steps_in(blocked) == ["step-000000000002.pt"]


WRITER = """
import sys, torch
from pathlib import Path
from elasticd.worker.checkpoint import CheckpointWriter
writer = CheckpointWriter(Path(sys.argv[1]), 3)
big = torch.ones(4_000_000)
for step in range(10_000):
    writer.save(step, {"counters": {"applied": step}}, [big * step])
    writer.wait()
    print(step, flush=True)
"""


def test_a_writer_killed_in_the_middle_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """SIGKILL comes while a temporary file is there and grows."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        reported = int(process.stdout.readline())
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size > 0 for path in tmp_path.glob(".step-*")):
            assert time.monotonic() < deadline, "never seen in the middle of a write"
    except FileNotFoundError:
        pass  # renamed between listing and looking: as good a moment as any
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    document = latest(tmp_path)
    assert document is not None
    step = document.header["counters"]["applied"]
    assert step >= reported
    assert (document.tensors[0] == step).all()
    write(tmp_path, 20_000)  # the next writer is not disturbed by what is left
    for path in tmp_path.glob("step-*.pt"):
        load(path)
