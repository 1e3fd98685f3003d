"""`elasticctl top` at 80 x 24: pages, keys, prompts, hostile texts, an absent controller, a thousand jobs, a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticd.ctl.formatting import CONTROL
from elasticd.ctl.promises import moment
from elasticd.ctl.screens.sources import Marks, gpu_runs
from elasticd.protocol.messages import EventKind, EventView
from elasticd.protocol.model import JobId

from ..screens_world import NOW_S, World, job, outlook, running, server, thousand

pytest.importorskip("textual", reason="elasticctl[top] is not installed")

ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))
PATIENCE_S = 120.0
SIZE = (80, 24)


class Screen:
    """The application without a terminal, with what it shows."""

    def __init__(self, app: Any, pilot: Any) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def texts(self) -> str:
        return "\n".join(self.app.lines.texts())

    @property
    def drawn(self) -> str:
        """The visible lines as they are drawn."""
        lines = self.app.lines
        return "\n".join(lines.render_line(y).text for y in range(lines.size.height))

    async def until(self, *words: str) -> None:
        """Wait until a page has all of the words."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(word in self.texts for word in words):
            assert time.monotonic() < deadline, f"{words} in\n{self.texts[:4000]}"
            await self.pilot.pause(0.02)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    def head(self, name: str = "head") -> str:
        return str(self.app.query_one(f"#{name}").render())


def shown(world: World, play: Callable[[Screen], Awaitable[None]], size: tuple[int, int] = SIZE) -> None:
    from elasticd.ctl.top.app import Top

    async def run() -> None:
        app = Top(world.connect, "alice")
        async with app.run_test(size=size) as pilot:
            await play(Screen(app, pilot))

    asyncio.run(run())


@pytest.fixture
def world() -> World:
    found = World()
    found.jobs = [job("bert-2", owner="bob", reason="waits for 2 GPUs"), running("digits-1")]
    found.servers = [server("s1", {0: "digits-1", 1: "digits-1"}, barred={3: "Xid 79"}), server("s2", {}, 4)]
    found.logs["digits-1.0"] = f"{NOW_S:.3f} o hello\n{NOW_S:.3f} e oh no\n".encode()
    return found


def test_gpus_stand_by_server_and_ones_own_jobs_come_first(world: World) -> None:
    async def play(screen: Screen) -> None:
        await screen.until("digits-1", "bert-2")
        lines = screen.app.lines.texts()
        assert next(line for line in lines if line.startswith("s1")).startswith("s1  A A · x · · · ·")
        assert next(line for line in lines if line.startswith("s2")).startswith("s2  · · · · ")
        own = lines.index(next(line for line in lines if "jobs of alice (1)" in line))
        others = lines.index(next(line for line in lines if "other jobs (1)" in line))
        mine = next(at for at, line in enumerate(lines) if line.startswith("A digits-1"))
        theirs = next(at for at, line in enumerate(lines) if re.match(r"\s*bert-2", line))
        assert own < mine < others < theirs
        assert "12 GPUs, 2 in use" in screen.head()
        await screen.press("m")
        assert "bert-2" not in screen.texts

    shown(world, play)


def test_the_reasons_of_a_waiting_job_end_with_its_forecast(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticd.ctl.screens.sources.EXPLAINED_S", 0.5)
    world.outlook = outlook("digits-1", "bert-2")

    async def play(screen: Screen) -> None:
        await screen.until("bert-2")
        await screen.press("j", "w")
        await screen.until("no GPU is idle", f"starts      at {moment(NOW_S + 600.0, NOW_S)}, in 8 of 10 simulations")

    shown(world, play)


def test_keys_lead_to_a_jobs_page_its_log_and_its_reasons_and_back(world: World) -> None:
    async def play(screen: Screen) -> None:
        await screen.until("digits-1")
        assert screen.app.lines.current.job == "digits-1"
        await screen.press("j")
        assert screen.app.lines.current.job == "bert-2"
        assert "waits for 2 GPUs" in screen.texts
        await screen.press("enter")
        await screen.until("it has had no GPUs yet")
        await screen.press("escape")
        await screen.until("other jobs")
        assert screen.app.lines.current.job == "bert-2"
        await screen.press("k", "enter")
        await screen.until("GPUs over time", "210 ms at step 90", "owner            alice")
        await screen.press("l")
        await screen.until("hello", "! oh no")
        world.logs["digits-1.0"] += f"{NOW_S:.3f} o one more\n".encode()
        await screen.until("one more")
        await screen.press("w")
        await screen.until("no GPU is idle", "changes it")
        await screen.press("escape")
        await screen.until("other jobs")
        assert screen.app.lines.current.job == "digits-1"

    shown(world, play)


def test_a_filter_leaves_lines_with_its_words_and_ends_with_escape(world: World) -> None:
    async def play(screen: Screen) -> None:
        await screen.until("digits-1")
        await screen.press("slash", *"bert")
        assert "digits-1" not in screen.texts.partition("jobs of")[2]
        assert "bert-2" in screen.texts
        await screen.press("enter")
        assert "filter: bert" in screen.head()
        await screen.press("escape")
        assert "digits-1" in screen.texts.partition("jobs of")[2]

    shown(world, play)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("history", ("JOB", "ELAPSED")),
        ("quota", ("each user may use all 8 GPUs",)),
        ("health", ("controllers", "leads, term 1")),
        ("gpus", ("s1  A A",)),
        ("log digits-1", ("hello",)),
        ("why digits-1", ("no GPU is idle",)),
        ("digits-1", ("GPUs over time",)),
        ("user bob", ("jobs of bob (1)",)),
        ("help", ("Enter, d",)),
    ],
)
def test_a_colon_goes_to_each_page(world: World, command: str, words: tuple[str, ...]) -> None:
    async def play(screen: Screen) -> None:
        await screen.until("digits-1")
        await screen.press("colon", *("space" if letter == " " else letter for letter in command), "enter")
        await screen.until(*words)

    shown(world, play)


def test_an_unknown_job_is_told_and_the_way_back_is_open(world: World) -> None:
    async def play(screen: Screen) -> None:
        await screen.until("digits-1")
        await screen.press("colon", *"nothing", "enter")
        while "there is no job 'nothing'" not in screen.head("banner"):
            await screen.pilot.pause(0.02)
        await screen.press("escape")
        await screen.until("digits-1")
        assert screen.app.query_one("#banner").display is False

    shown(world, play)


def test_the_help_fits_a_small_terminal(world: World) -> None:
    async def play(screen: Screen) -> None:
        await screen.press("question_mark")
        await screen.until("q             quit")
        lines = screen.app.lines
        assert len(lines.texts()) <= lines.size.height
        assert all(len(line) <= lines.room for line in lines.texts())

    shown(world, play)


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60)])
def test_no_line_is_wider_than_the_terminal(size: tuple[int, int]) -> None:
    world = thousand()

    async def play(screen: Screen) -> None:
        await screen.until("vit-5")
        for keys in ((), ("enter",), ("w",)):
            await screen.press(*keys)
            await screen.pilot.pause(0.3)
            wide = [line for line in screen.app.lines.texts() if len(line) > max(40, screen.app.lines.room)]
            assert wide == []

    shown(world, play, size)


def test_texts_of_jobs_have_no_control_characters(world: World) -> None:
    text = "<b>[red]bold[/red] \x1b]0;title\x07\x1b[31mred\u202eleft\u2066 \x9b2J"
    hostile = msgspec.structs.replace(world.jobs[1], reason=text, owner="alice", odd_metrics={text: "nan"})
    spec = msgspec.structs.replace(hostile.spec, command=("python", text))
    world.jobs[1] = msgspec.structs.replace(hostile, spec=spec)
    world.servers = [server("s1", {}, barred={0: text}, trouble=text)]
    world.events = [EventView(number=1, time_s=NOW_S, kind=EventKind.TOLD, job=JobId("digits-1"), text=text)]
    world.logs["digits-1.0"] = f"{NOW_S:.3f} o {text} {'x' * 10_000}\n".encode()
    world.explanation = msgspec.structs.replace(world.explanation, reasons=(text,))

    async def play(screen: Screen) -> None:
        await screen.until("digits-1")
        for command in ("jobs", "digits-1", "log digits-1", "why digits-1", "health"):
            await screen.press("colon", *("space" if letter == " " else letter for letter in command), "enter")
            await screen.until("<b>[red]bold[/red]" if command != "jobs" else "digits-1")
            assert CONTROL.sub("", screen.drawn.replace("\n", "")) == screen.drawn.replace("\n", ""), command

    shown(world, play)


def test_while_the_controller_is_away_the_age_of_what_is_shown_is_told(world: World) -> None:
    async def play(screen: Screen) -> None:
        await screen.until("digits-1")
        world.away = True
        deadline = time.monotonic() + PATIENCE_S
        while "no controller answers" not in screen.head("banner"):
            assert time.monotonic() < deadline
            await screen.pilot.pause(0.05)
        assert re.match(r"This is \d+ s old: ", screen.head("banner"))
        assert "digits-1" in screen.texts
        world.away = False
        while screen.app.query_one("#banner").display:
            assert time.monotonic() < deadline
            await screen.pilot.pause(0.05)

    shown(world, play)


def test_jobs_are_told_apart_without_colours() -> None:
    found, marks = thousand(), Marks()
    servers = found.connect().client.servers()
    marks.see(servers)
    jobs = {run.job for view in servers.servers for run in gpu_runs(view) if run.job}
    assert len(jobs) > 100
    assert len({marks.letters(name) for name in jobs}) == len(jobs)
    assert marks.letters("none-1") == ""


def test_a_refresh_with_a_thousand_jobs_takes_less_than_100_ms_of_processor_time() -> None:
    async def play(screen: Screen) -> None:
        await screen.until("vit-5")
        await screen.pilot.pause(0.5)
        taken = []
        for _ in range(7):
            began_s = time.thread_time()
            screen.app._draw(False)
            assert "vit-5" in screen.drawn
            taken.append(time.thread_time() - began_s)
        assert min(taken) < 0.1, taken  # other processes of a busy machine make single ones slower

    shown(thousand(), play)


def test_without_a_terminal_or_without_textual_one_sentence_says_so(tmp_path: Path) -> None:
    done = subprocess.run([ELASTICCTL, "top"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a terminal" in done.stderr


@pytest.mark.cluster
def test_a_real_cluster_in_a_terminal_of_80_columns(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"

    def elasticctl(*words: str) -> str:
        command = [ELASTICCTL, "--dir", str(directory), *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    elasticctl("up", "--gpus", "2")
    try:
        name = elasticctl("submit", "--gpus", "1", "--", "sleep", "600")
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        command = [ELASTICCTL, "--dir", str(directory), "top"]
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        written = b""

        def until(*words: str) -> None:
            nonlocal written
            deadline = time.monotonic() + PATIENCE_S
            while not all(word.encode() in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", written) for word in words):
                assert time.monotonic() < deadline, written[-3000:]
                if select.select([master], [], [], 0.5)[0]:
                    written += os.read(master, 1 << 16)
            written = b""

        until("GPUs by server", name, "running")
        os.write(master, b"\r")
        until("GPUs over time")
        os.write(master, b"q")
        assert process.wait(PATIENCE_S) == 0
        os.close(master)
        os.close(slave)
    finally:
        elasticctl("down", "--purge", "--yes")
