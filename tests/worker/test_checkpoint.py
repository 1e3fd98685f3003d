"""Checkpoints: complete or absent, whatever happens to the writer."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import OperatorError
from elasticd.worker.events import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from elasticd.worker.state.checkpoint import STALE_AFTER_S, CheckpointWriter, Document, latest, load


class Told:
    """A writer, and its reports."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._told: queue.SimpleQueue[CheckpointSaved | CheckpointFailed] = queue.SimpleQueue()
        self.writer = CheckpointWriter(directory, keep, self._told.put)
        self._number = 0

    def save(
        self, step: int, header: dict[str, Any], tensors: list[torch.Tensor], generation: int = 1, **more: Any
    ) -> None:
        self._number += 1
        self.writer.save(SaveCheckpoint(self._number, step, 0, generation), header, tensors, **more)

    def outcome(self) -> CheckpointSaved | CheckpointFailed:
        return self._told.get(timeout=300)


def write(directory: Path, *steps: int, keep: int = 10, generation: int = 1) -> None:
    told = Told(directory, keep)
    for number, step in enumerate(steps, 1):
        header = {"counters": {"applied": step, "generation": generation}}
        told.save(step, header, [torch.full((3,), float(step)), torch.tensor(step)], generation)
        assert told.outcome() == CheckpointSaved(number)


def newest(directory: Path, generation: int = 1) -> Document | None:
    return latest(directory, generation)[0]


def name_of(generation: int, step: int) -> str:
    return f"generation-{generation:08d}-step-{step:012d}.pt"


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    write(tmp_path / "made" / "on the way", 41)
    document = load(tmp_path / "made" / "on the way" / name_of(1, 41))
    assert document.header["counters"]["applied"] == 41
    assert [tensor.tolist() for tensor in document.tensors] == [[41.0] * 3, 41]


def test_only_the_newest_are_kept_in_the_order_of_their_steps(tmp_path: Path) -> None:
    write(tmp_path, 5, 999, 1_000_000_000_000, 12, keep=2)
    assert files(tmp_path) == [name_of(1, 999), name_of(1, 1_000_000_000_000)]
    document = newest(tmp_path)
    assert document is not None
    assert document.header["counters"]["applied"] == 1_000_000_000_000


def test_no_directory_and_an_empty_one_have_no_checkpoint(tmp_path: Path) -> None:
    assert latest(tmp_path, 1) == (None, "", None)
    assert latest(tmp_path / "missing", 1) == (None, "", None)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04", None], ids=["empty", "junk", "zip", "half"])
def test_a_file_that_cannot_be_read_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    write(tmp_path, 1, 2)
    path = tmp_path / name_of(1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with caplog.at_level(logging.WARNING):
        document, trouble, damaged = latest(tmp_path, 1)
    assert document is not None
    assert document.header["counters"]["applied"] == 1
    assert "step-000000000002.pt: not a checkpoint" in caplog.text
    assert "step-000000000002.pt: not a checkpoint" in trouble
    assert damaged == 2
    with pytest.raises(OperatorError, match="not a checkpoint that can be read"):
        load(path)


def test_bits_that_have_flipped_on_the_disk_are_noticed_and_the_one_before_is_taken(tmp_path: Path) -> None:
    told = Told(tmp_path, 10)
    for number, step in enumerate((1, 2), 1):
        told.save(step, {"counters": {"applied": step}}, [torch.arange(100_000)])
        assert told.outcome() == CheckpointSaved(number)
    path = tmp_path / name_of(1, 2)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    document, trouble, damaged = latest(tmp_path, 1)
    assert document is not None
    assert (document.header["counters"]["applied"], damaged) == (1, 2)
    assert "other bits than were written" in trouble


def test_checksums_that_a_script_has_switched_off_condemn_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.serialization, "get_crc32_options", lambda: False, raising=False)
    write(tmp_path, 3)
    assert torch.load(tmp_path / name_of(1, 3), weights_only=True)["summed"] is False
    assert newest(tmp_path) is not None


def test_a_part_that_is_missing_is_damage(tmp_path: Path) -> None:
    path = tmp_path / name_of(1, 2)
    torch.save({"header": {"tensors": [["a"], ["b"]]}, "tensors": [torch.zeros(1)]}, path)
    document, trouble, damaged = latest(tmp_path, 1)
    assert (document, damaged) == (None, 2)
    assert "tensors are missing" in trouble


def test_a_file_that_may_not_be_opened_is_not_damaged(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / name_of(1, 2)).symlink_to(tmp_path / "on a file system that is not mounted")
    document, trouble, damaged = latest(tmp_path, 1)
    assert document is not None
    assert damaged is None
    assert "cannot be opened: No such file or directory" in trouble


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
    others = ["model.pt", "step-1.pt", "step-000000000007.pt.part", ".step-000000000007.pt.123", f".{name_of(1, 7)}.5"]
    stale = [tmp_path / ".step-000000000003.pt.77", tmp_path / f".{name_of(1, 3)}.77"]
    for name in [*others, *(path.name for path in stale)]:
        (tmp_path / name).write_bytes(b"")
    for path in stale:
        os.utime(path, (0, time.time() - 2 * STALE_AFTER_S))
    write(tmp_path, 8, keep=1)
    assert files(tmp_path) == sorted([*others, name_of(1, 8)])


def test_what_is_saved_may_change_once_it_is_copied_and_what_changes_earlier_is_copied_at_once(tmp_path: Path) -> None:
    told = Told(tmp_path, 1)
    big, small = torch.zeros(5_000_000), torch.zeros(3)
    told.save(1, {}, [big, small], mutable=[small])
    small.fill_(1.0)
    told.writer.settle()
    big.fill_(1.0)
    assert told.outcome() == CheckpointSaved(1)
    document = newest(tmp_path)
    assert document is not None
    assert not any(tensor.any() for tensor in document.tensors)


def test_a_failed_write_is_told_and_stops_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    told = Told(blocked, 1)
    told.save(1, {}, [])
    failed = told.outcome()
    assert isinstance(failed, CheckpointFailed)
    assert "it could not be written" in failed.reason
    blocked.unlink()
    told.save(2, {}, [])
    assert told.outcome() == CheckpointSaved(2)
    assert files(blocked) == [name_of(1, 2)]


# --------------------------------------------------------------------------------------------------------------- lineages


def test_the_greatest_generation_is_the_newest_even_where_an_older_one_went_further(tmp_path: Path) -> None:
    write(tmp_path, 120, generation=3)
    write(tmp_path, 100, generation=9)
    document = newest(tmp_path, 12)
    assert document is not None
    assert document.header["counters"] == {"applied": 100, "generation": 9}


def test_who_goes_on_from_a_checkpoint_makes_it_its_own(tmp_path: Path) -> None:
    """A partitioned server continues to write; its successors have only read so far, and then die."""
    write(tmp_path, 90, 100, generation=3)
    assert newest(tmp_path, 9) is not None
    assert files(tmp_path) == [name_of(3, 90), name_of(9, 100)]
    told = Told(tmp_path, 1)
    told.save(110, {}, [], generation=3)
    failed = told.outcome()
    assert isinstance(failed, CheckpointFailed)
    assert "generation 9 of the job goes on, this is generation 3" in failed.reason
    assert files(tmp_path) == [name_of(3, 90), name_of(9, 100)]


def test_a_newer_generation_prunes_what_older_ones_have_left(tmp_path: Path) -> None:
    write(tmp_path, 90, 100, generation=3)
    write(tmp_path, 95, 99, generation=4, keep=2)
    assert files(tmp_path) == [name_of(4, 95), name_of(4, 99)]


def test_files_of_earlier_versions_are_read_and_are_the_oldest(tmp_path: Path) -> None:
    write(tmp_path, 7)
    (tmp_path / name_of(1, 7)).rename(tmp_path / "step-000000000007.pt")
    document = newest(tmp_path, 2)
    assert document is not None
    assert document.header["counters"]["applied"] == 7
    write(tmp_path, 3, generation=2, keep=1)
    assert files(tmp_path) == [name_of(2, 7)], "a greater step of the same generation is newer"


WRITER = """
import sys, torch
from pathlib import Path
from queue import SimpleQueue
from elasticd.worker.state.checkpoint import CheckpointWriter
from elasticd.worker.events import SaveCheckpoint
told = SimpleQueue()
writer = CheckpointWriter(Path(sys.argv[1]), 3, told.put)
big = torch.ones(4_000_000)
for step in range(10_000):
    writer.save(SaveCheckpoint(step, step, 0, 1), {"counters": {"applied": step}}, [big * step])
    told.get()
    print(step, flush=True)
"""


def test_a_writer_killed_in_the_middle_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """SIGKILL arrives while a temporary file exists and grows."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        reported = int(process.stdout.readline())
        deadline = time.monotonic() + 300
        while not any(path.stat().st_size > 0 for path in tmp_path.glob(".generation-*")):
            assert time.monotonic() < deadline, "never seen in the middle of a write"
    except FileNotFoundError:
        pass  # renamed between listing and looking: a valid moment to kill, too
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    document = newest(tmp_path)
    assert document is not None
    step = document.header["counters"]["applied"]
    assert step >= reported
    assert (document.tensors[0] == step).all()
    write(tmp_path, 20_000)  # leftovers do not disturb the next writer
    for path in tmp_path.glob("generation-*.pt"):
        load(path)


# ------------------------------------------------------------------------------------------------------ storage that fails


def test_two_writers_of_one_state_do_not_write_into_each_others_file(tmp_path: Path) -> None:
    """Two savers on two servers, in containers with equal process ids."""
    first, second = (Told(tmp_path, 2) for _ in range(2))
    seen: list[set[str]] = []
    real = os.replace

    def look(source: Path, target: Path) -> None:
        seen.append({path.name for path in tmp_path.iterdir() if path.name.startswith(".")})
        if len(seen) == 1:
            second.save(7, {}, [torch.ones(3)])
            assert second.outcome() == CheckpointSaved(1)
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", look)
        first.save(7, {}, [torch.ones(3)])
        assert first.outcome() == CheckpointSaved(1)
    assert [len(names) for names in seen] == [1, 2]
    assert files(tmp_path) == [name_of(1, 7)]


def test_a_checkpoint_that_is_durable_counts_even_where_older_ones_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", refuse)
    write(tmp_path, 2, keep=1)
    assert files(tmp_path) == [name_of(1, 1), name_of(1, 2)]


def test_a_directory_that_cannot_be_listed_has_no_checkpoint_and_says_why(tmp_path: Path) -> None:
    """The storage's fault is not the script's: nothing is raised in the training thread."""
    (tmp_path / "file").write_bytes(b"")
    document, trouble, _ = latest(tmp_path / "file", 1)
    assert document is None
    assert "file cannot be listed" in trouble
