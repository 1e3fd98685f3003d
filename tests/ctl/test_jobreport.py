"""`report JOB`: times add up, and notes are few, justified and in order of what they would save."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.ctl.jobreport import document, lines, report_of
from elasticd.protocol.messages import CurvePoint, JobView, ShareChange, WorkerStage, WorkerView
from elasticd.protocol.model import GpuRange, GpuSeconds, JobId, JobPhase, JobSpec, ServerId, Use, WorkerId

HOUR_S = 3600.0


def used(busy: float, cores: float = 1.0, memory_gib: int = 4, sampled_s: float = HOUR_S) -> Use:
    return Use(
        gpu_s=sampled_s,
        busy_gpu_s=busy * sampled_s,
        cpu_s=cores * sampled_s,
        wall_s=sampled_s,
        memory_bytes=memory_gib << 30,
        gpu_memory_bytes=30 << 30,
    )


def view(low: int = 1, high: int = 8, memory_bytes: int = 0, cpus: float = 0.0, **fields: Any) -> JobView:
    spec = JobSpec(
        name="digits",
        command=("python", "train.py"),
        gpus=GpuRange(min=low, max=high),
        virtual_workers=8,
        workdir="/tmp",
        memory_bytes=memory_bytes,
        cpus=cpus,
    )
    usual: dict[str, Any] = {
        "job": JobId("digits-1"),
        "spec": spec,
        "phase": JobPhase.FINISHED,
        "reason": "",
        "submitted_s": 1000.0,
        "started_s": 1000.0 + HOUR_S,
        "finished_s": 1000.0 + 6 * HOUR_S,
        "share_gpus": 0,
        "wanted_gpus": 0,
        "manual_share": None,
        "generation": 1,
        "ordered_generation": 1,
        "step": 10,
        "total_steps": 10,
        "epoch": 0,
        "samples_per_s": 0.0,
        "median_step_s": 0.0,
        "metrics": {},
        "workers": (),
        "past_workers": (),
        "shares": (ShareChange(time_s=1000.0 + HOUR_S, share=4, generation=1),),
        "resizes": (),
        "restarts": 0,
        "exit_code": 0,
        "ran_s": 4 * HOUR_S,
        "peak_gpus": 4,
        "gpu_seconds": GpuSeconds(used_gpu_s=16 * HOUR_S),
    }
    return JobView(**{**usual, **fields})


def test_the_times_add_up_and_a_job_without_losses_has_no_note() -> None:
    found = report_of(view(), 1e9)
    assert (found.queued_s, found.ran_s, found.interrupted_s, found.mean_gpus) == (HOUR_S, 4 * HOUR_S, HOUR_S, 4.0)
    assert found.notes == ()
    assert "  used        100 %  16.00 GPU-hours: trained, or its command ran" in lines(view(), found, 1e9)
    assert document(view(), found)["interrupted_s"] == HOUR_S


def test_a_job_that_never_ran_is_reported_too() -> None:
    waits = view(
        shares=(),
        started_s=None,
        finished_s=None,
        ran_s=0.0,
        peak_gpus=0,
        gpu_seconds=GpuSeconds(),
        phase=JobPhase.PENDING,
    )
    found = report_of(waits, 1000.0 + 2 * HOUR_S)
    assert (found.queued_s, found.ran_s, found.mean_gpus, found.notes) == (2 * HOUR_S, 0.0, 0.0, ())
    assert len(lines(waits, found, 1e9)) == 2


def point(share: int, rate: float, source: str = "measured") -> CurvePoint:
    return CurvePoint(share_gpus=share, servers=1, steps_per_s=rate, samples_per_s=None, source=source)


OUT_OF_MEMORY = WorkerView(
    worker=WorkerId("digits-1.0"),
    server=ServerId("s"),
    gpu=0,
    phase=WorkerStage.LEFT,
    pid=None,
    reason="out of memory (x): killed",
)
LATE = (ShareChange(time_s=1000.0 + 5 * HOUR_S, share=4, generation=1),)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"gpu_seconds": GpuSeconds(used_gpu_s=9.0, lost_gpu_s=1.0), "restarts": 3},
            "10 % of its GPU time was done again after 3 restarts: checkpoint more often than every 10m00s",
        ),
        ({"gpu_seconds": GpuSeconds(used_gpu_s=6.0, idle_gpu_s=4.0)}, "40 % of its GPU time went into starting"),
        ({"gpu_seconds": GpuSeconds(used_gpu_s=9.0, paused_gpu_s=1.0)}, "10 % of its GPU time stood still"),
        ({"low": 4, "shares": LATE, "ran_s": HOUR_S}, "it waited 5h00m for 4 GPUs: a smaller minimum"),
        ({"ran_s": HOUR_S}, "it was without GPUs for 4h00m after its start"),
        (
            {"curve": (point(2, 10.0), point(4, 11.0))},
            "4 GPUs trained 1.10 times as fast as 2: with --gpus 1:2 others have the rest",
        ),
        (
            {"use": used(0.3)},
            "its GPUs computed for 30 % of the time: more workers for its loaders, a larger micro-batch",
        ),
        (
            {"use": used(0.3, cores=3.9), "cpus": 4.0},
            "its GPUs computed for 30 % of the time: it uses all of its 4 cores",
        ),
        ({"use": used(0.001)}, "its GPUs computed for 0 % of the time: does it use them at all?"),
        (
            {"use": used(0.9, memory_gib=10), "memory_bytes": 64 << 30},
            "each worker asked for 64 GiB and used 10 GiB at most: --memory 13GiB leaves the rest to others",
        ),
        (
            {"use": used(0.9, cores=1.5), "cpus": 8.0},
            "each worker asked for 8 cores and used 1.5 on average: --cpus 2 leaves the rest to others",
        ),
        (
            {"memory_bytes": 1 << 30, "past_workers": (OUT_OF_MEMORY,)},
            "1 of its workers ran out of memory; each asks for 1 GiB: ask for more (--memory)",
        ),
    ],
)
def test_what_was_lost_is_told_with_what_to_change(fields: dict[str, Any], words: str) -> None:
    (note,) = report_of(view(**fields), 1e9).notes
    assert note.startswith(words)


def test_throughput_that_is_only_assumed_and_shares_that_it_never_had_are_no_reason() -> None:
    assert report_of(view(curve=(point(2, 10.0), point(4, 11.0, "assumed"))), 1e9).notes == ()
    assert report_of(view(curve=(point(4, 10.0), point(8, 11.0, "history"))), 1e9).notes == ()


def test_at_most_three_notes_and_the_worst_first() -> None:
    spent = GpuSeconds(used_gpu_s=10.0, idle_gpu_s=50.0, paused_gpu_s=10.0, lost_gpu_s=30.0)
    notes = report_of(view(gpu_seconds=spent, ran_s=HOUR_S, restarts=2), 1e9).notes
    assert len(notes) == 3
    assert notes[0].startswith("it was without GPUs for 4h00m")
    assert notes[1].startswith("50 %")


def test_gpus_that_are_held_before_a_job_trains_do_not_raise_its_average() -> None:
    found = report_of(view(gpu_seconds=GpuSeconds(used_gpu_s=16 * HOUR_S, idle_gpu_s=2 * HOUR_S)), 1e9)
    assert found.mean_gpus == 4.0


def test_use_stands_beside_allocation_and_good_use_and_short_jobs_have_no_note() -> None:
    shown = view(use=used(0.62, cores=3.1, memory_gib=11), memory_bytes=16 << 30, cpus=4.0)
    found = report_of(shown, 1e9)
    assert found.notes == ()
    assert lines(shown, found, 1e9)[-3:] == [
        "  GPU use     62 % of the time; at most 30 GiB on one",
        "  CPU use     3.1 of 4 cores for each worker on average",
        "  memory      11 GiB of 16 GiB at most in one worker",
    ]
    assert document(shown, found)["use"]["busy_gpu_s"] == 0.62 * HOUR_S
    assert document(view(), report_of(view(), 1e9))["busy"] is None
    assert report_of(view(use=used(0.0, sampled_s=60.0), memory_bytes=1 << 40), 1e9).notes == ()
