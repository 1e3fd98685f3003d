"""The live view: jobs, GPUs and shares over time, as a Rich renderable. Pure: the same scene gives the same picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elasticd.protocol.messages import JobView, WorkerStage
from elasticd.protocol.model import GpuAddress

from .descriptions import pause_s, quality
from .shares import colours, stack_at

CHART_WINDOW_S = 90.0  # the chart begins with this much, and its scale shrinks when it is full
CHART_MARGIN = 6  # columns for labels and the edge
TICK_S = 15
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
NOTES_SHOWN = 4
WIDTH_WITH_BARS = 104


@dataclass(frozen=True)
class Scene:
    """Contents of the screen."""

    now_s: float  # Unix time, as all times here
    began_s: float
    gpus: tuple[GpuAddress, ...]
    jobs: tuple[JobView, ...]
    notes: tuple[str, ...]  # events, oldest first
    doing: str = ""  # present wait, as text


def render(scene: Scene, width: int) -> RenderableType:
    """Return the whole screen, for a terminal of `width` columns."""
    parts: list[RenderableType] = [_header(scene), _jobs(scene, width), _servers(scene), *_chart(scene, width)]
    parts += [Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in scene.notes[-NOTES_SHOWN:]]
    parts += [Text("")] * (NOTES_SHOWN - len(scene.notes))  # the screen does not grow while it runs
    return Padding(Group(*parts), (0, 1))


def _header(scene: Scene) -> Text:
    elapsed_s = int(scene.now_s - scene.began_s)
    text = Text("elasticctl demo", style="bold")
    text.append(f"   {elapsed_s // 60}:{elapsed_s % 60:02d}   ", style="not bold")
    if scene.doing:
        text.append(f"{_spinner(scene)} {scene.doing}", style="not bold italic")
    return text


def _spinner(scene: Scene) -> str:
    return SPINNER[int((scene.now_s - scene.began_s) * 8) % len(SPINNER)]


def _jobs(scene: Scene, width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    titles = ["", "job", "phase", "GPUs", "step", "quality", "last resize"]
    if width >= WIDTH_WITH_BARS:
        titles.insert(titles.index("quality"), "")
    for title in titles:
        table.add_column(title, no_wrap=True, header_style="dim")
    for number, job in enumerate(scene.jobs):
        cells: list[RenderableType] = [
            _label(number, job),
            Text(job.job),
            Text(_phase(scene, job)),
            _workers(number, job),
            Text(f"{_steps(job)}/{job.total_steps or '?'}"),
            Text(quality(job, short=True)),
            Text(_last_resize(job)),
        ]
        if width >= WIDTH_WITH_BARS:
            cells.insert(titles.index("quality") - 1, _bar(number, job))
        table.add_row(*cells)
    for _ in range(3 - len(scene.jobs)):
        table.add_row()
    return table


def _phase(scene: Scene, job: JobView) -> str:
    """Return the phase, with a spinner while workers are to come or to go."""
    moves = not job.phase.final and job.share_gpus != job.wanted_gpus
    return f"{job.phase.value} {_spinner(scene)}" if moves else job.phase.value


def _steps(job: JobView) -> int:
    return 0 if job.step is None else job.step + 1


def _last_resize(job: JobView) -> str:
    if not job.resizes:
        return ""
    last = job.resizes[-1]
    return f"{last.workers_before}→{last.workers_after} in {1000 * pause_s(last):.0f} ms"


def _label(number: int, job: JobView) -> Text:
    colour, on_it = colours(number)
    return Text(f" {_letter(job)} ", style=f"bold {on_it} on {colour}")


def _letter(job: JobView) -> str:
    return job.spec.name[0].upper()


def _workers(number: int, job: JobView) -> Text:
    """Return a block for each worker's GPU (server:index): solid where it trains, open where it is still preparing."""
    text = Text()
    colour, on_it = colours(number)
    for worker in job.workers:
        trains = worker.phase is WorkerStage.TRAINING
        text.append(f"{_short(worker.server)}:{worker.gpu}", style=f"{on_it} on {colour}" if trains else colour)
        text.append(" ")
    return text


def _short(server: str) -> str:
    """Return "2" for "local-2": the full name stands among the servers."""
    return server.rsplit("-", 1)[-1]


def _bar(number: int, job: JobView) -> ProgressBar:
    style, total = colours(number)[0], job.total_steps or 1
    return ProgressBar(total=total, completed=_steps(job), width=16, complete_style=style, finished_style=style)


def _servers(scene: Scene) -> Text:
    """Return all GPUs in their servers, each with the letter of its job."""
    on_gpu = {
        (worker.server, worker.gpu): (number, worker.phase is WorkerStage.TRAINING)
        for number, job in enumerate(scene.jobs)
        for worker in job.workers
    }
    text = Text("\n", no_wrap=True, overflow="ellipsis")
    server = None
    for gpu in scene.gpus:
        if gpu.server != server:
            text.append(f"{'   ' if server else ''}{gpu.server} ")
            server = gpu.server
        if (gpu.server, gpu.index) not in on_gpu:
            text.append(" · ", style="dim")
            continue
        number, trains = on_gpu[gpu.server, gpu.index]
        colour, on_it = colours(number)
        letter = _letter(scene.jobs[number])
        text.append(f" {letter} " if trains else f"({letter})", style=f"bold {on_it} on {colour}" if trains else colour)
    text.append("   (in brackets: starting)\n" if scene.gpus else "\n", style="dim")
    return text


def _chart(scene: Scene, width: int) -> list[Text]:
    """Return shares over time: a row for each GPU of the cluster, a column for each stretch of time."""
    columns = max(20, width - 2 - CHART_MARGIN)
    window_s = max(CHART_WINDOW_S, scene.now_s - scene.began_s)
    column_s = window_s / columns
    filled = min(columns, math.ceil((scene.now_s - scene.began_s) / column_s))
    stacks = [stack_at(scene.jobs, scene.began_s + (column + 0.5) * column_s) for column in range(filled)]
    rows = [_chart_row(scene.jobs, stacks, level) for level in range(len(scene.gpus), 0, -1)]
    return [
        Text("GPUs that train, over time", style="dim", no_wrap=True),
        *rows,
        _chart_axis(columns, column_s),
        Text(""),
    ]


def _chart_row(jobs: Sequence[JobView], stacks: Sequence[Sequence[int]], level: int) -> Text:
    text = Text(f"{level:3d} ┤", style="dim", no_wrap=True, overflow="crop")
    for stack in stacks:
        if len(stack) < level:
            text.append(" ")
            continue
        number = stack[level - 1]
        colour, on_it = colours(number)
        text.append(_letter(jobs[number]), style=f"not dim {on_it} on {colour}")
    return text


def _chart_axis(columns: int, column_s: float) -> Text:
    tick_s = TICK_S * max(1, math.ceil(8 * column_s / TICK_S))  # at least eight columns apart
    line = [" "] * (columns + CHART_MARGIN)
    for tick in range(0, int(columns * column_s) + 1, tick_s):
        label = f"{tick} s"
        at = min(5 + round(tick / column_s), len(line) - len(label))
        line[at : at + len(label)] = label
    return Text("".join(line), style="dim", no_wrap=True, overflow="crop")
