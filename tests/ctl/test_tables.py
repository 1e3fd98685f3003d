"""Tables on terminals of 50, 80 and 120 columns: with long names, wide characters, a thousand jobs, and long reasons."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest
from rich.cells import cell_len

from elasticd.ctl import render
from elasticd.ctl.tables import Cell, Column, Row, Table, hung, lines, middle, wrapped
from elasticd.protocol.messages import CordonView, JobView, ServerState, ServerView, StillThere
from elasticd.protocol.model import CordonKind, Gpu, GpuKind, JobId, Server, ServerId
from elasticd.protocol.texts import ranges

from .test_render import view

WIDTHS = (50, 80, 120)
LONG_REASON = (
    "asks for at least 4 GPUs, 1 of 16 is free; server gpu-node-0042.cluster.example.org starts no workers for 35 s: "
    "/data/checkpoints/a/very/long/path/which/no/line/of/fifty/columns/can/hold: No space left on device"
)


def running(number: int, name: str = "digits", **fields: object) -> JobView:
    usual = {
        "job": f"{name}-{number}",
        "phase": "running",
        "owner": "alice",
        "share_gpus": 12,
        "wanted_gpus": 16,
        "step": 123455,
        "total_steps": 1234567,
        "epoch": 321,
        "samples_per_s": 98765.4,
        "median_step_s": 0.25,
    }
    return view(number, **{**usual, **fields})


def shown(table: Table, width: int | None) -> list[str]:
    return list(lines(table, width, False))


def words(text: str) -> str:
    """Text without the effects of wrapping."""
    return re.sub(r"\s+", "", text)


NAMES = ("a", "digits", "an-experiment-with-a-very-long-name-indeed")
OWNERS = ("al", "maria.von-und-zu-hohenstein", "数据中心用户", "\u202eevil\x1b[31m")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("owner", OWNERS)
def test_no_line_is_wider_than_the_terminal_and_nothing_but_a_name_is_shortened(width: int, name: str, owner: str):
    jobs = [running(7, name, owner=owner, reason=LONG_REASON), running(12345, name, owner=owner), view(3)]
    found = shown(render.job_table(jobs, 100.0), width)
    assert max(map(cell_len, found)) <= width
    text = "\n".join(found)
    for number in ("12 > 16", "123456/1234567", "321", "98765", "3d04h"):
        assert text.count(number) >= 2 or number == "3d04h", number
    assert words(LONG_REASON) in words(text)
    assert text.count("…") <= 3  # once in each row: its name
    for row in jobs[:2]:
        assert re.search(rf"-{row.job.rpartition('-')[2]}\b", text), "the number tells jobs of one name apart"
    assert render.printable(owner) in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("width", [*range(1, 40), 200, 10_000])
def test_any_other_width_ends_and_keeps_the_numbers(width: int):
    text = "\n".join(shown(render.job_table([running(7, NAMES[-1], reason=LONG_REASON)], 100.0), width))
    assert "12 > 16" in text
    assert words("123456/1234567") in words(text)
    assert words(LONG_REASON) in words(text)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_thousand_jobs_are_a_thousand_rows_of_one_form(width: int):
    jobs = [running(number, reason="needs 1 GPU" if number % 10 == 0 else "") for number in range(1, 1001)]
    found = shown(render.job_table(jobs, 10.0), width)
    rows = [line for line in found[1:] if not line.startswith(" ")]
    assert len(rows) == 1000
    assert len({line.index("running") for line in rows}) == 1
    assert max(map(cell_len, found)) <= width


def test_a_program_gets_one_line_for_each_row():
    found = shown(render.job_table([running(1, reason=LONG_REASON), running(2)], 10.0), None)
    assert len(found) == 3
    assert found[1].endswith(LONG_REASON)


def test_where_there_is_room_the_reason_stands_beside_the_row():
    head, row = shown(render.job_table([running(1, reason="needs 1 GPU")], 10.0), 120)
    assert head.endswith("NOTE")
    assert row.endswith("needs 1 GPU")


def server(name: str, state: ServerState = ServerState.ALIVE, trouble: str = "", gpus: int = 8) -> ServerView:
    kind = "NVIDIA A100-SXM4-80GB"
    found = tuple(Gpu(index=index, kind=GpuKind.CUDA, name=kind) for index in range(gpus))
    return ServerView(
        server=Server(server=ServerId(name), address="10.77.123.234", gpus=found),
        alive=state is not ServerState.LOST,
        last_heard_s=0.0,
        used={index: JobId("an-experiment-with-a-very-long-name-1" if index < 5 else "b-2") for index in range(6)},
        state=state,
        trouble=trouble,
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_servers_with_their_jobs_and_troubles_are_right_at_any_width(width: int):
    servers = [
        server("gpu-node-0042.cluster.example.org"),
        server("数据中心一号", ServerState.UNFIT, LONG_REASON),
        server("c", ServerState.LOST),
    ]
    found = shown(render.server_table(servers, 100.0), width)
    text = "\n".join(found)
    assert max(map(cell_len, found)) <= width
    assert words(LONG_REASON) in words(text)
    assert text.count("10.77.123.234") == 3
    assert words("an-experiment-with-a-very-long-name-1 (0-4), b-2 (5)") in words(text)
    assert "lost 1m40s ago" in text


def cordon(kind: CordonKind, gpu: int | None = None, drained_s: float | None = None) -> CordonView:
    return CordonView(gpu=gpu, kind=kind, reason="new disk", by="operator:root", since_s=40.0, drained_s=drained_s)


@pytest.mark.parametrize("width", WIDTHS)
def test_servers_that_operators_have_cordoned_or_drain_say_since_when_and_who_is_still_there(width: int):
    cordoned, draining, drained, one, gone = (
        msgspec.structs.replace(server(name, state), cordons=(cordon(kind, gpu, drained_s),))
        for name, state, kind, gpu, drained_s in (
            ("a", ServerState.UNFIT, CordonKind.CORDON, None, None),
            ("b", ServerState.UNFIT, CordonKind.DRAIN, None, None),
            ("c", ServerState.UNFIT, CordonKind.DRAIN_BY_PREEMPTING, None, 90.0),
            ("d", ServerState.ALIVE, CordonKind.DRAIN, 3, None),
            ("e", ServerState.LOST, CordonKind.CORDON, None, None),
        )
    )
    left = (
        StillThere(job=JobId("b-2"), gpus=(0, 1), stays=False, why="is being moved to s2:0, s2:1"),
        StillThere(job=JobId("c-3"), gpus=(3,), stays=True, why=LONG_REASON),
    )
    draining = msgspec.structs.replace(draining, still_there=left)
    found = shown(render.server_table([cordoned, draining, drained, one, gone], 100.0), width)
    text = words("\n".join(found))
    assert max(map(cell_len, found)) <= width
    for told in (
        "cordoned 1m00s ago",
        "draining for 1m00s",
        "drained 10s ago",
        "GPU 3 draining for 1m00s",
        "lost 1m40s ago",
        "b-2 (0-1) is being moved to s2:0, s2:1",
        f"c-3 (3) stays: {LONG_REASON}",
    ):
        assert words(told) in text, told


def test_gpus_of_a_job_are_told_as_ranges():
    assert ranges([7, 0, 1, 2, 5]) == "0-2, 5, 7"
    assert ranges([]) == ""


def test_gpus_that_take_no_new_work_are_not_free():
    view = msgspec.structs.replace(server("s1"), barred={0: "it is lost", 3: "it is hot"}, used={3: JobId("digits-1")})
    (row,) = render.server_table([view], 0.0).rows
    assert [cell.text for cell in row.cells][2:4] == ["8", "6"]


@pytest.mark.parametrize(
    ("text", "width", "found"),
    [
        ("digits-12", 9, "digits-12"),
        ("a-long-name-12345", 10, "a-l…-12345"),
        ("a-long-name-123456789012", 10, "a…56789012"),
        ("a-long-name", 8, "a-lo…ame"),
        ("数据中心一号", 7, "数据…号"),
    ],
)
def test_a_long_name_loses_its_middle(text: str, width: int, found: str):
    assert middle(text, width) == found
    assert cell_len(middle(text, width)) <= width


def test_words_are_broken_only_where_they_are_longer_than_a_line():
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("a /long/path/to b", 6) == ["a", "/long/", "path/t", "o b"]
    assert wrapped("", 5) == [""]
    assert wrapped("数据中心", 5) == ["数据", "中心"]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize(
    "line",
    [
        "  reason           " + LONG_REASON,
        "11:17:55  failed         fails-2        failed: " + LONG_REASON,
        "11:17:55  failed         a-name-that-is-longer-than-its-column-7 failed: " + LONG_REASON,
        "  log              server-1:/" + "path/" * 40 + "a-1.0.log",
        "short",
    ],
)
def test_a_line_of_columns_is_broken_between_words_and_goes_on_below_its_last_column(line: str, width: int):
    found = list(hung(line, width))
    assert " ".join(" ".join(found).split()) == " ".join(line.split())
    assert all(cell_len(part) <= width or " " not in part[width:].strip() for part in found)
    assert all(word in line.split() for part in found for word in part.split()), "no word is broken"
    indents = {len(part) - len(part.lstrip()) for part in found[1:]}
    assert len(indents) <= 1
    if line.startswith("  reason") and width >= 80:
        assert indents == {19}


def test_styles_are_outside_the_measure():
    table = Table((Column("A"), Column("B", right=True)), [Row((Cell("x", "red"), Cell("1")))])
    assert list(lines(table, 20, True)) == ["\x1b[1mA  B\x1b[0m", "\x1b[31mx\x1b[0m  1"]


def test_a_table_of_ascii_does_not_load_what_measures_other_scripts():
    program = (
        "import sys; from elasticd.ctl.tables import *;"
        "list(lines(Table((Column('A'),), [Row((Cell('x'),), ('y',))]), 50, True)); print('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
