"""Pictures of reports: files of each format, whatever the job's names and records contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticd.ctl import pictures
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import JobView, ShareChange, UsageBy, UsageRow
from elasticd.protocol.model import GpuSeconds, Resize
from tests.ctl.test_explain import NOW, view

pytest.importorskip("matplotlib")
MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}

RESIZES = tuple(
    Resize(generation=n, step=10 * n, workers_before=1, workers_after=2, longest_gap_s=0.05 + 0.01 * n, median_step_s=0.03,
           recovery=n == 3)
    for n in range(7)
)  # fmt: skip
SHARES = tuple(
    ShareChange(time_s=NOW - 8000 + n * 700, share=s, generation=n) for n, s in enumerate((1, 4, 2, 0, 4, 8, 3))
)
JOBS = {
    "resized": view(
        job="digits$7$", submitted_s=NOW - 9000, phase="running", shares=SHARES, resizes=RESIZES, peak_gpus=8
    ),
    "waiting": view(submitted_s=NOW, shares=()),
    "over at once": view(job="$x_{", phase="failed", submitted_s=NOW, finished_s=NOW, shares=SHARES[:1]),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("suffix", pictures.SUFFIXES)
def test_a_job_is_drawn(job: JobView, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"job{suffix}"
    pictures.check(path)
    pictures.draw_job(path, job, NOW)
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert path.stat().st_size > 2000


def row(number: int) -> UsageRow:
    spent = GpuSeconds(used_gpu_s=3600.0 * number, idle_gpu_s=900.0, paused_gpu_s=100.0, lost_gpu_s=40.0)
    return UsageRow(user=f"user-{number}", day=f"2026-11-{number % 30 + 1:02d}", job=f"job-{number}", gpu_seconds=spent)


@pytest.mark.parametrize("by", UsageBy, ids=lambda by: by.value)
def test_the_rows_with_most_gpu_hours_and_the_last_days_are_drawn(by: UsageBy, tmp_path: Path) -> None:
    path = tmp_path / "use.svg"
    pictures.draw_usage(path, [row(number) for number in range(pictures.MOST_ROWS + 3)], by)
    text = path.read_text()
    assert "3 more are left out" in text
    assert "GPU-hours" in text
    pictures.draw_usage(path, [], by)
    assert "more are left out" not in path.read_text()


@pytest.mark.parametrize("name", ["report.txt", "nowhere/report.png", "."])
def test_a_path_that_cannot_be_written_is_refused_first(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--plot: "):
        pictures.check(tmp_path / name)
