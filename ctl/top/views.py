"""Lines of the pages of `elasticctl top`. Pure.

A line is text with ANSI colours; texts of jobs and operators contain no control characters. No information depends on a
colour alone: letters distinguish jobs, words distinguish phases and states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ...protocol.messages import EventView, JobFound, Jobs, JobView, QuotasFound, ServerView
from ...protocol.model import JobPhase, Resize
from ...protocol.texts import many
from .. import explain, history, quota, render
from ..formatting import printable, span
from ..labelled import Page, Part
from ..promises import moment
from ..screens.sources import Cluster, Health, Marks, explanation_of, gpu_runs, is_well
from ..screens.tails import TailChunk
from ..tables import Cell, Row, Table, cell_len, hung, middle, painted, parts

FREE, BARRED = "·", "x"
COLOURS = ("30;46", "30;43", "30;42", "30;45", "37;44", "37;41")  # ANSI codes of a job: text and background
BAR = "█"
PARTS_OF_BLOCK = " ▁▂▃▄▅▆▇█"
CHART_ROWS = 5
MOST_RESIZES = 10
SERVER_WIDTH = 20


class Item:
    """Lines that belong together.

    `job`: the job whose page opens when the item is chosen; "": none. `fixed`: the item is a title, which no filter
    hides and which cannot be chosen. `folded`: lines after the first are made and shown only while the item is the
    current one.
    """

    __slots__ = ("_lines", "_rest", "fixed", "folded", "job")

    def __init__(self, lines: Iterable[str], job: str = "", fixed: bool = False, folded: bool = False) -> None:
        self._rest = iter(lines)
        self._lines = [next(self._rest, "")]
        self.job, self.fixed, self.folded = job, fixed, folded

    @property
    def first(self) -> str:
        return self._lines[0]

    @property
    def lines(self) -> list[str]:
        self._lines += self._rest
        return self._lines


def title(text: str, width: int) -> Item:
    return Item((painted(f"── {text} {'─' * max(0, width - cell_len(text) - 4)}", "bold", True),), fixed=True)


def table_items(table: Table, width: int, jobs: Sequence[str] = ()) -> Iterator[Item]:
    """Yield a table: its head, then each row. `jobs`: which job each row is about."""
    for at, lines in enumerate(parts(table, width, True)):
        job = jobs[at - 1] if at and jobs else ""
        yield Item(lines, job, fixed=not at, folded=bool(job))


# -- the cluster


def home(found: Cluster, marks: Marks, viewer: str, mine: bool, most: int, width: int) -> Iterator[Item]:
    """Yield the GPUs of at most `most` servers, those with a trouble first; then the jobs, those of `viewer` first, with
    `mine` only those.
    """
    servers = sorted(found.servers.servers, key=is_well)
    yield title("GPUs by server", width)
    yield from gpu_items(servers[:most], found.servers.time_s, marks, width)
    if len(servers) > most:
        yield Item((f"  and {many(len(servers) - most, 'server')} more: :gpus",), fixed=True)
    own: list[JobView] = []
    others: list[JobView] = []
    for job in found.jobs.jobs:
        (own if render.user(job) == viewer else others).append(job)
    if own or mine:
        yield title(f"jobs of {printable(viewer)} ({len(own):,})", width)
        yield from job_items(own, found.jobs.time_s, marks, width)
    if not mine:
        yield title(f"{'other jobs' if own else 'jobs'} ({len(others):,})", width)
        yield from job_items(others, found.jobs.time_s, marks, width)
    for refused in found.jobs.refused:
        yield from text_items([render.refused_job(refused)], width)


def job_items(jobs: Sequence[JobView], now_s: float, marks: Marks, width: int) -> Iterator[Item]:
    if not jobs:
        yield Item(("  none",), fixed=True)
        return
    table = render.job_table(jobs, now_s)
    marked = max((len(marks.letters(job.job)) for job in jobs), default=0)
    rows = [
        Row((Cell(f"{marks.letters(job.job):<{marked}} {row.cells[0].text}"), *row.cells[1:]), row.notes)
        for job, row in zip(jobs, table.rows, strict=True)
    ]
    yield from table_items(replace(table, rows=rows if marked else table.rows), width, [job.job for job in jobs])


def gpus(found: Cluster, marks: Marks, width: int) -> Iterator[Item]:
    """Yield the GPUs of all servers."""
    yield from gpu_items(found.servers.servers, found.servers.time_s, marks, width)


def gpu_items(servers: Sequence[ServerView], now_s: float, marks: Marks, width: int) -> Iterator[Item]:
    """Yield an item for each server: name, GPUs and state in a line, and its notes below."""
    rows = render.server_table(servers, now_s).rows
    names = min(SERVER_WIDTH, max((cell_len(view.server.server) for view in servers), default=0))
    longest = max((len(marks.letters(job)) for view in servers for job in view.used.values()), default=1)
    wide = max((len(view.server.gpus) for view in servers), default=0) * (longest + 1)
    if not servers:
        yield Item(("  no server has joined",), fixed=True)
    for view, row in zip(servers, rows, strict=True):
        name = middle(view.server.server, names)
        shown, room = gpu_map(view, marks, longest)
        state, free = row.cells[1], row.cells[3].text
        words = f"{painted(state.text, state.style, True)}{'' if free == '-' else f', {free} free'}"
        notes = "; ".join(row.notes)
        head = f"{name}{' ' * (names - cell_len(name))}  {shown}{' ' * max(0, wide - room)} {words}"
        used = names + 2 + max(wide, room) + 1 + cell_len(state.text) + (0 if free == "-" else len(free) + 7)
        left = width - used - 2
        if notes and left >= 16:
            yield Item((f"{head}  {cut(notes, left)}",))
        else:
            yield Item((head, *([f"  {cut(notes, width - 2)}"] if notes and view.trouble else [])))


def gpu_map(view: ServerView, marks: Marks, longest: int) -> tuple[str, int]:
    """Return a server's GPUs, a mark for each, and the columns that they take."""
    found, room = [], 0
    for run in gpu_runs(view):
        number = marks.number(run.job)
        mark = (BARRED if run.why else "") + marks.letters(run.job) if run.job else BARRED if run.why else FREE
        text = " ".join([f"{mark:<{longest}}"] * run.count) + " "
        room += cell_len(text)
        found.append(text if number is None else f"\x1b[{COLOURS[number % len(COLOURS)]}m{text[:-1]}\x1b[0m ")
    return "".join(found), room


def cut(text: str, width: int) -> str:
    """Return the text, shortened to `width`; the page of servers shows the whole text."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[:-1]
    return text + "…"


def text_items(lines: Iterable[str], width: int) -> Iterator[Item]:
    for line in lines:
        yield Item(_fitted(printable(line), width))


# -- a job


def job_page(found: JobFound, events: Sequence[EventView], width: int) -> Iterator[Item]:
    """Yield the page of a job: shares over time, pauses of its resizes, facts, events."""
    view, now_s = found.job, found.time_s
    yield Item((painted(printable(render.outcome(view, "  ")), "bold", True),), fixed=True)
    yield title("GPUs over time", width)
    yield Item(share_chart(view, now_s, width))
    if view.resizes:
        yield title("pauses of resizes", width)
        yield Item(pause_lines(view.resizes, width))
    yield title("facts", width)
    facts = (fact for fact in render.job_facts(view, now_s) if fact.label != "share over time")
    yield from text_items(render.fact_lines(facts), width)
    yield title("events", width)
    yield from event_items(events[::-1], now_s, width)


def share_chart(view: JobView, now_s: float, width: int) -> Iterator[str]:
    """Yield the job's share over time as blocks, a column for an equal part of its life, with the number of GPUs at the left."""
    end_s, begin_s = view.finished_s or now_s, view.submitted_s
    if not view.shares:
        yield "  it has had no GPUs yet"
        return
    most = max(1, *(change.share for change in view.shares))
    label = len(str(most))
    columns = max(10, width - label - 2)
    heights, at = [], 0
    share = 0
    for column in range(columns):
        until_s = begin_s + (end_s - begin_s) * (column + 1) / columns
        peak = share
        while at < len(view.shares) and view.shares[at].time_s <= until_s:
            share = view.shares[at].share
            peak = max(peak, share)
            at += 1
        heights.append(share if share else peak)
    for row in range(CHART_ROWS, 0, -1):
        name = str(most) if row == CHART_ROWS else "0" if row == 1 else ""
        yield (
            f"{name:>{label}} │"
            + "".join(_block(height / most * CHART_ROWS - (row - 1)) for height in heights).rstrip()
        )
    yield f"{'':>{label}} └{'─' * columns}"[:width]
    lasted = f"{'over' if view.phase.final else 'now'}, {span(end_s - begin_s)} later"
    yield f"{'':>{label}}  submitted{lasted:>{max(1, columns - 9)}}"


def _block(part: float) -> str:
    return PARTS_OF_BLOCK[round(max(0.0, min(1.0, part)) * (len(PARTS_OF_BLOCK) - 1))]


def pause_lines(resizes: Sequence[Resize], width: int) -> Iterator[str]:
    """Yield the last resizes, the latest first: how long training stood still, as a bar and as a number."""
    last = resizes[: -MOST_RESIZES - 1 : -1]
    longest = max(0.001, *(resize.paused_s for resize in last))
    room = max(5, min(30, width - 45))
    for resize in last:
        bar = BAR * max(1, round(room * resize.paused_s / longest))
        change = f"{resize.workers_before} -> {resize.workers_after}"
        loss = ", after a loss" if resize.recovery else ""
        yield f"  {change:<10} {bar:<{room}} {render.milliseconds(resize.paused_s)} at step {resize.step:,}{loss}"


def why(found: JobFound, width: int, starts: str = "") -> Iterator[Item]:
    """Yield the reasons for a job's GPUs, and the changes that would alter them. starts: when the job does; "": not known."""
    forecast = [Part("starts", starts)] if starts and found.job.phase is JobPhase.PENDING else []
    for line in Page(width).lines([*explain.parts(*explanation_of(found), found.time_s), *forecast]):
        yield Item(_folded(line, width))


def log(piece: TailChunk, width: int) -> Iterator[Item]:
    """Yield the last lines of a job's output."""
    for trouble in piece.troubles:
        yield from text_items([f"! {trouble}"], width)
    for _, worker, stream, text in piece.lines:
        shown = f"{f'[{worker}] ' if piece.several else ''}{'! ' if stream == 'stderr' else ''}{text}"
        yield Item(_folded(shown, width))
    if not piece.lines and not piece.troubles:
        yield Item(("no output yet" if not piece.ended else "no output",), fixed=True)
    if piece.ended:
        yield Item((painted("── the log has ended", "bold", True),), fixed=True)


def _fitted(line: str, width: int) -> Iterator[str]:
    """Yield a line of columns, broken between words where that is possible."""
    for part in hung(line, width):
        yield from _folded(part, width)


def _folded(text: str, width: int) -> Iterator[str]:
    """Yield a text in pieces of the terminal's width."""
    step = width if cell_len(text) <= width or text.isascii() else max(1, width // 2)
    yield from (text[at : at + step] for at in range(0, max(1, len(text)), step))


# -- other pages


def ended(found: Jobs, width: int) -> Iterator[Item]:
    yield from table_items(history.table(found.jobs, history.USUAL), width, [view.job for view in found.jobs])


def quotas(found: QuotasFound, width: int) -> Iterator[Item]:
    if found.quotas:
        yield from table_items(quota.quota_table(found), width)
    else:
        yield Item((quota.without_quotas(found),))
    if found.reservations:
        yield title("reservations", width)
        yield from table_items(quota.reservation_table(found), width)


def health(found: Health, width: int) -> Iterator[Item]:
    """Yield servers, those with a trouble first, and controllers."""
    yield from text_items((f"! {text}" for text in found.troubles()), width)
    yield title("servers", width)
    yield from table_items(render.server_table(found.servers_by_trouble(), found.servers.time_s), width)
    yield title("controllers", width)
    yield from table_items(render.controller_table(found.controllers), width)
    yield title("last events", width)
    yield from event_items(found.events[::-1], found.servers.time_s, width)


def event_items(events: Sequence[EventView], now_s: float, width: int) -> Iterator[Item]:
    for event in events:
        line = f"{moment(event.time_s, now_s)}  {event.kind.value:<14}  {printable(event.text)}"
        yield Item(_fitted(line, width), event.job or "")
