"""The demo's pure parts: the screen, the log lines, the schedule of commands, the picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from elasticd.protocol.messages import JobView, ShareChange, WorkerStage, WorkerView
from elasticd.protocol.model import (
    GpuAddress,
    GpuRange,
    JobId,
    JobPhase,
    JobSpec,
    Resize,
    ServerId,
    WorkerId,
)
from examples.demo.descriptions import changes, ending, quality, resize_text
from examples.demo.picture import Mark, draw
from examples.demo.screen import Scene, render
from examples.demo.shares import share_at, stack_at, times_of_change
from examples.demo.story import BETWEEN_SUBMISSIONS_S, PATIENCE_S, Story

GPUS = tuple(GpuAddress(server=ServerId(f"local-{s}"), index=i) for s in (1, 2) for i in (0, 1))


def worker(number: int, gpu: GpuAddress, phase: WorkerStage = WorkerStage.TRAINING) -> WorkerView:
    return WorkerView(worker=WorkerId(f"j.{number}"), server=gpu.server, gpu=gpu.index, phase=phase, pid=100 + number)


def job(name: str, *, shares: tuple[tuple[float, int], ...] = (), **fields: Any) -> JobView:
    """A job's view; `shares` are (time, share)."""
    spec = JobSpec(name=name, command=("python",), gpus=GpuRange(min=1, max=4), virtual_workers=4, workdir="/")
    share = shares[-1][1] if shares else 0
    usual: dict[str, Any] = {
        "job": JobId(f"{name}-1"), "spec": spec, "phase": JobPhase.RUNNING, "reason": "", "submitted_s": 0.0, "started_s": 0.0,
        "finished_s": None, "share_gpus": share, "wanted_gpus": share, "manual_share": None, "generation": 1,
        "ordered_generation": 1, "step": 9, "total_steps": 100, "epoch": 0, "samples_per_s": 0.0, "median_step_s": 0.1,
        "metrics": {}, "workers": tuple(worker(i, gpu) for i, gpu in enumerate(GPUS[:share])), "past_workers": (),
        "shares": tuple(ShareChange(time_s=t, share=n, generation=1) for t, n in shares), "resizes": (), "restarts": 0,
        "exit_code": None,
    }  # fmt: skip
    return JobView(**{**usual, **fields})


def resize(generation: int = 2) -> Resize:
    return Resize(
        generation=generation, step=10, workers_before=4, workers_after=2, longest_gap_s=0.112, median_step_s=0.1
    )


def screen(scene: Scene, width: int = 120, colours: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colours, color_system="truecolor" if colours else None)
    console.print(render(scene, width))
    return file.getvalue()


def scene(*jobs: JobView, now_s: float = 60.0, doing: str = "") -> Scene:
    return Scene(now_s, 0.0, GPUS, jobs, ("elasticctl submit x",), doing)


def test_the_screen_shows_phase_gpus_progress_quality_and_the_last_pause_of_each_job() -> None:
    view = job("digits", shares=((5.0, 4), (30.0, 2)), metrics={"test_accuracy": 0.9812}, resizes=(resize(),))
    text = screen(scene(view), width=140)
    for part in (
        "digits-1",
        "running",
        "1:0 1:1",
        "10/100",
        "98.1% right",
        "4→2 in 12 ms",
    ):
        assert part in text


def test_the_chart_stacks_the_jobs_and_never_shows_more_than_the_cluster_has() -> None:
    first = job("digits", shares=((0.0, 4), (30.0, 2)))
    second = job("charlm", shares=((30.0, 2),))
    rows = [line for line in screen(scene(first, second)).splitlines() if "┤" in line]
    assert len(rows) == len(GPUS)
    assert "C" in rows[0]
    assert set(rows[-1].split("┤")[1].strip()) == {"D"}
    assert all(row.count("D") > 0 for row in rows), "digits had all four at first"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_screen_fits_any_width_and_keeps_its_height_while_jobs_come(width: int) -> None:
    empty, full = (
        scene(doing="waiting"),
        scene(*(job(name, shares=((1.0, 1),)) for name in ("a", "b", "c")), now_s=400.0),
    )
    heights = {len(screen(each, width).splitlines()) for each in (empty, full)}
    assert len(heights) == 1
    assert all(len(line) <= width for line in screen(full, width).splitlines())


def test_workers_that_still_start_are_told_from_those_that_train() -> None:
    view = job(
        "digits",
        shares=((1.0, 1),),
        wanted_gpus=2,
        workers=(worker(0, GPUS[0]), worker(1, GPUS[1], WorkerStage.STARTING)),
    )
    text = screen(scene(view))
    assert "running ⠋" in text
    assert "local-1  D (D)" in text


def test_without_colours_the_screen_has_no_escape_characters() -> None:
    assert "\x1b" not in screen(scene(job("digits", shares=((1.0, 2),))))
    assert "\x1b" in screen(scene(job("digits", shares=((1.0, 2),))), colours=True)


def test_a_line_is_said_for_each_change_and_none_without_one() -> None:
    before = job("digits", shares=((0.0, 4),))
    after = msgspec.structs.replace(before, share_gpus=2, wanted_gpus=2, resizes=(resize(),))
    assert changes([before], [before]) == []
    assert changes([before], [after]) == ["digits-1 trains on 2", "digits-1: 4 -> 2 GPUs, paused for 12 ms"]


def test_progress_is_said_at_each_tenth_with_the_quality_so_far() -> None:
    before = job("charlm", step=17)
    after = job("charlm", step=19, metrics={"bits_per_character": 2.345})
    assert changes([before], [after]) == ["charlm-1: step 20 of 100, 2.35 bits per character"]
    assert changes([after], [job("charlm", step=20)]) == []


def test_the_end_of_a_job_is_said_once_with_quality_or_reason() -> None:
    running = job("digits")
    finished = job("digits", phase=JobPhase.FINISHED, metrics={"test_accuracy": 0.99})
    failed = job("digits", phase=JobPhase.FAILED, reason="exit code 1: ValueError: no")
    assert changes([running], [finished]) == ["digits-1 finished: 99.0% test accuracy"]
    assert changes([finished], [finished]) == []
    assert ending(failed) == "digits-1 failed: exit code 1: ValueError: no"


def test_a_metric_that_nobody_knows_is_shown_under_its_own_name() -> None:
    assert quality(job("x", metrics={"r2": 0.51234, "loss": 1.0})) == "loss 1, r2 0.5123"


def test_a_pause_is_what_a_switch_took_beyond_a_usual_step() -> None:
    assert resize_text(resize()) == "4 -> 2 GPUs, paused for 12 ms"
    assert resize_text(msgspec.structs.replace(resize(), longest_gap_s=0.05)).endswith("paused for 0 ms")


def test_a_share_holds_from_its_change_to_the_next_and_ends_with_the_job() -> None:
    view = job("digits", shares=((5.0, 4), (30.0, 2)), finished_s=50.0)
    assert [share_at(view, t) for t in (4.9, 5.0, 29.9, 30.0, 49.9, 50.0)] == [0, 4, 4, 2, 2, 0]
    assert times_of_change([view], 0.0, 60.0) == [0.0, 5.0, 30.0, 50.0, 60.0]
    assert stack_at([view, job("charlm", shares=((30.0, 1),))], 40.0) == [0, 0, 1]


def test_the_story_submits_three_jobs_one_after_the_other_then_scales_by_hand_and_back() -> None:
    story = Story(0.0)
    digits, charlm = job("digits", shares=((0.0, 2),)), job("charlm", shares=((0.0, 2),))
    gone = job("tabular", phase=JobPhase.FINISHED)
    assert story.next(0.0, []) == ("submit", "examples/digits/job.yaml")
    story.ended(0.0)
    assert story.next(BETWEEN_SUBMISSIONS_S - 1, [digits]) is None
    assert story.next(BETWEEN_SUBMISSIONS_S, [job("digits")]) is None, "it does not train yet"
    assert story.next(BETWEEN_SUBMISSIONS_S, [digits]) == ("submit", "examples/charlm/job.yaml")
    story.ended(10.0)
    assert story.next(10.0 + PATIENCE_S, [digits, job("charlm")]) == ("submit", "examples/tabular/job.yaml")
    story.ended(60.0)
    assert story.next(61.0, [digits, charlm, job("tabular")]) is None
    assert story.next(62.0, [digits, charlm, gone]) == ("scale", "charlm-1", "3")
    story.ended(70.0)
    by_hand = msgspec.structs.replace(charlm, manual_share=3)
    assert story.next(71.0, [digits, by_hand, gone]) is None
    assert story.next(80.0, [digits, by_hand, gone]) == ("scale", "charlm-1", "auto")
    story.ended(81.0)
    assert story.over


def test_the_story_leaves_out_scaling_a_job_that_is_over() -> None:
    story = Story(0.0)
    for _ in range(3):
        assert story.next(PATIENCE_S, []) is not None
        story.ended(0.0)
    assert story.next(1.0, [job("charlm", phase=JobPhase.FINISHED)]) is None
    assert story.over


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    jobs = [job("digits", shares=((5.0, 4), (30.0, 2)), finished_s=80.0), job("charlm", shares=((30.0, 2), (80.0, 4)))]
    draw(
        tmp_path / "new" / "shares.png", jobs, 4, 0.0, 100.0, [Mark(1.0, "submit digits"), Mark(28.0, "submit charlm")]
    )
    assert (tmp_path / "new" / "shares.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_can_be_drawn_when_nothing_has_trained(tmp_path: Path) -> None:
    draw(tmp_path / "shares.png", [job("digits")], 4, 0.0, 1.0, [])
    assert (tmp_path / "shares.png").exists()
