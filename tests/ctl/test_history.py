"""The table of finished jobs, and the selection of workers' logs and lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elasticd.agent.accounts import myself
from elasticd.agent.logfiles import JobFiles, read_piece
from elasticd.ctl import history, logs
from elasticd.ctl.history import FIELDS, USUAL, Picked, chosen, ended_by, picked, table
from elasticd.ctl.tables import cell_len, lines
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import GetEnded, GetLog, JobView, Log, ReadLog, ShareChange, WorkerStage, WorkerView
from elasticd.protocol.model import GpuRange, GpuSeconds, JobId, JobPhase, JobSpec, ServerId, WorkerId

DAY_S = 86_400.0
SPEC = JobSpec(
    name="a", command=("sleep", "a b"), gpus=GpuRange(min=1, max=4), virtual_workers=4, workdir="/w", user="bob"
)


def over(number: int, **fields: Any) -> JobView:
    usual = {
        field.name: None if field.name in ("manual_share", "step", "total_steps", "exit_code")
        else () if field.name in ("workers", "past_workers", "shares", "resizes") else 0
        for field in msgspec.structs.fields(JobView) if field.required
    }  # fmt: skip
    usual |= {"job": JobId(f"a-{number}"), "spec": SPEC, "phase": JobPhase.FINISHED, "reason": "", "metrics": {}}
    usual |= {"submitted_s": 10.0, "started_s": 40.0, "finished_s": 3640.0, "peak_gpus": 4, "owner": "alice"}
    usual |= {"gpu_seconds": GpuSeconds(used_gpu_s=3600.0, idle_gpu_s=1800.0)}
    return JobView(**{**usual, **fields})


def cell(view: JobView, name: str) -> tuple[object, str]:
    """A cell as JSON and as text."""
    (row,) = table([view], [name]).rows
    return FIELDS[name].value(view), row.cells[0].text


def test_a_job_that_is_over_says_when_how_long_and_with_how_much_it_ran() -> None:
    found = {
        name: cell(over(1), name) for name in ("job", "elapsed_s", "waited_s", "gpu_hours", "peak_gpus", "exit_code")
    }
    assert found == {
        "job": ("a-1", "a-1"),
        "elapsed_s": (3600.0, "1h00m"),
        "waited_s": (30.0, "30s"),
        "gpu_hours": (1.5, "1.50"),
        "peak_gpus": (4, "4"),
        "exit_code": (0, "0"),
    }
    assert FIELDS["submitted"].value(over(1)) == "1970-01-01T00:00:10+00:00"


def test_a_job_that_never_started_has_no_time_and_waited_until_its_end() -> None:
    view = over(1, phase=JobPhase.CANCELLED, started_s=None, gpu_seconds=GpuSeconds(), peak_gpus=0)
    assert [cell(view, name)[1] for name in ("started", "elapsed_s", "waited_s", "exit_code")] == [
        "-",
        "-",
        "1h00m",
        "-",
    ]


def test_the_peak_of_a_job_of_an_earlier_version_is_that_of_the_shares_that_are_left() -> None:
    shares = (ShareChange(time_s=1.0, share=3, generation=1), ShareChange(time_s=2.0, share=2, generation=2))
    assert cell(over(1, peak_gpus=0, shares=shares), "peak_gpus")[0] == 3


@pytest.mark.parametrize(
    ("fields", "by"),
    [
        ({}, "itself"),
        ({"phase": JobPhase.CANCELLED, "ended_by": "carol"}, "carol"),
        ({"phase": JobPhase.CANCELLED, "ended_by": "local"}, "bob"),
        ({"phase": JobPhase.CANCELLED}, ""),
        ({"phase": JobPhase.FAILED, "exit_code": 1}, "itself"),
        ({"phase": JobPhase.FAILED}, "cluster"),
    ],
)
def test_a_job_that_is_over_says_who_has_ended_it(fields: dict[str, Any], by: str) -> None:
    assert ended_by(over(1, **fields)) == by


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_all_is_told(width: int) -> None:
    views = [over(1), over(12345, phase=JobPhase.FAILED, reason="one two three " * 9, owner="maria")]
    found = list(lines(table(views, USUAL), width, False))
    assert max(map(cell_len, found)) <= width
    text = " ".join(" ".join(found).split())
    for word in ("alice", "maria", "1h00m", "1.50", "submitted" if width <= 80 else "SUBMITTED", "three one two three"):
        assert word in text


def test_columns_are_chosen_by_name_or_by_its_beginning_in_the_order_that_is_given() -> None:
    assert chosen("exit,job,gpu-hours,EL,exit_code,BY") == ("exit_code", "job", "gpu_hours", "elapsed_s", "ended_by")
    assert chosen(None) == USUAL
    for text, words in (
        ("job,nope", "'nope' is no column; columns are job, name"),
        ("re", "may be restarts or reason"),
    ):
        with pytest.raises(UserError, match=words):
            chosen(text)


class Pages:
    """The controller's finished jobs; counts how many are read."""

    def __init__(self, *views: JobView) -> None:
        self.views = views
        self.read = 0

    def ended(self, request: GetEnded, most: int | None = None) -> Iterator[JobView]:
        for view in self.views:
            self.read += 1
            yield view


def test_only_jobs_that_are_wanted_are_picked_and_no_more_is_read_than_it_takes() -> None:
    days = [over(number, finished_s=number * DAY_S + 100.0) for number in (9, 8, 7, 6, 5)]
    days[1] = msgspec.structs.replace(days[1], phase=JobPhase.FAILED)

    def names(asked: Picked, limit: int) -> tuple[list[str], bool, int]:
        pages = Pages(*days)
        found, more = picked(pages, GetEnded(), asked, limit)  # type: ignore[arg-type]
        return [view.job for view in found], more, pages.read

    assert names(Picked(), 2) == (["a-9", "a-8"], True, 3)
    assert names(Picked(frozenset({"finished"})), 9) == (["a-9", "a-7", "a-6", "a-5"], False, 5)
    assert names(Picked(after_s=7 * DAY_S + 50.0), 9) == (["a-9", "a-8", "a-7"], False, 4)
    assert names(Picked(after_s=7 * DAY_S + 200.0), 9) == (["a-9", "a-8"], False, 4), "of that day, but earlier"


def test_values_for_a_spreadsheet_are_one_line_each(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    views = [over(1, reason='a, "b"\x1b[2J\nc', phase=JobPhase.FAILED, exit_code=7)]
    shared = SimpleNamespace(client=Pages(*views))
    monkeypatch.setattr(history, "of", lambda context: shared)
    history.history(None, columns="job,reason,exit", limit=9, as_csv=True)  # type: ignore[arg-type]
    head, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert (head, row) == (["job", "reason", "exit_code"], ["a-1", 'a, "b" c', "7"])


@pytest.mark.parametrize("reason", ["=1+1", "@SUM(A1)", "+1", "-1", "\t=1+1"])
def test_no_value_is_a_formula_to_a_spreadsheet(
    reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    shared = SimpleNamespace(client=Pages(over(1, reason=reason, phase=JobPhase.FAILED, exit_code=-9)))
    monkeypatch.setattr(history, "of", lambda context: shared)
    history.history(None, columns="reason,exit", limit=9, as_csv=True)  # type: ignore[arg-type]
    _, (text, code) = csv.reader(io.StringIO(capsys.readouterr().out))
    assert (text, code) == ("'" + reason.replace("\t", " "), "-9")


# ------------------------------------------------------------------------------------------------------------------------ logs


def worker(number: int, attempt: int, stage: WorkerStage = WorkerStage.ENDED) -> WorkerView:
    name = WorkerId(f"a-1.{number}")
    return WorkerView(worker=name, server=ServerId("s"), gpu=0, phase=stage, pid=1, attempt=attempt)


def test_logs_of_one_attempt_are_those_of_its_workers() -> None:
    past = (worker(0, 1), worker(1, 1), worker(2, 2))
    view = over(1, past_workers=past, workers=(worker(10, 3), worker(11, 4, WorkerStage.ORDERED)))

    def names(**wanted: Any) -> list[str]:
        return [reader.worker for reader in logs._readers(view, logs.Wanted(**wanted))]

    assert names() == ["a-1.0", "a-1.1", "a-1.2", "a-1.10"]
    assert (names(attempt=1), names(attempt=3)) == (["a-1.0", "a-1.1"], ["a-1.10"])
    assert names(attempt=1, worker=1) == ["a-1.1"]
    with pytest.raises(UserError, match="--attempt 4: a-1 has no worker of it; attempts with workers: 1, 2, 3"):
        names(attempt=4)


@pytest.mark.parametrize(("tail", "left"), [(None, "abc"), (0, ""), (2, "bc"), (9, "abc")])
def test_the_last_lines_are_those_that_were_written_last(tail: int | None, left: str) -> None:
    told = [logs.Line(1.0, WorkerId("a-1.0"), "stdout", text) for text in "abc"]
    assert "".join(line.text for line in logs.Wanted(tail=tail).last(told)) == left


class LogOfOne:
    """Replaces the connection to a cluster: the log of one worker, served in pieces as an agent does."""

    def __init__(self, root: Path, data: bytes) -> None:
        (root / "a-1").mkdir()
        (root / "a-1" / "a-1.0.log").write_bytes(data)
        self.files = JobFiles(root)
        self.sent = 0  # bytes

    def ask(self, request: GetLog, kind: type[Log]) -> Log:
        read = ReadLog(request="r", job=JobId("a-1"), worker=request.worker, offset=request.offset, limit=request.limit)
        piece = read_piece(self.files, read, growing=False, account=myself())
        self.sent += len(piece.data)
        return Log(data=piece.data, next_offset=piece.next_offset, end=piece.end)


@pytest.mark.parametrize(("tail", "most_bytes"), [(0, 1 << 16), (3, 1 << 16), (9000, 1 << 21), (10**6, 1 << 23)])
def test_of_a_long_log_little_more_than_its_last_lines_is_read(tmp_path: Path, tail: int, most_bytes: int) -> None:
    data = b"".join(b"%d.5 o line\n" % (10**9 + number) for number in range(100_000))  # 2 MB
    log, reader = LogOfOne(tmp_path, data), logs._Reader(WorkerId("a-1.0"))
    lines = logs.Wanted(tail=tail).last(logs._read_wanted(log, over(1), reader, tail))  # type: ignore[arg-type]
    assert [int(line.time_s) - 10**9 for line in lines] == list(range(max(0, 100_000 - tail), 100_000))
    assert log.sent <= most_bytes
    assert reader.ended
