"""`elasticctl web` over HTTP: what is answered and to whom, hostile texts, a controller that is away, and a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest

from elasticd.ctl import render
from elasticd.ctl import web as pages_of_web
from elasticd.ctl.explain import lines as explained
from elasticd.ctl.promises import moment
from elasticd.ctl.screens import upstream
from elasticd.ctl.screens.tails import MOST_CHARACTERS, MOST_LINES
from elasticd.ctl.tables import lines
from elasticd.protocol.errors import ClusterUnreachable
from elasticd.protocol.messages import EventKind, EventView
from elasticd.protocol.model import JobId, JobPhase

from ..screens_world import NOW_S, World, job, outlook, running, server, thousand
from .conftest import Site

pytest.importorskip("starlette", reason="elasticctl[web] is not installed")
pytest.importorskip("uvicorn", reason="elasticctl[web] is not installed")

ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))
STATIC = Path(pages_of_web.__file__).with_name("static")
TOKEN = "a-token-of-many-letters"
PATIENCE_S = 120.0

HOSTILE = (
    "<script>alert(1)</script>",
    '</td></table><img src=x onerror="alert(1)">',
    "\x1b]0;title\x07\x1b[31mred\x1b[0m",
    "right\u202eto left\u2066",
    "javascript:alert(1)",
    "line\nanother\r\n",
)

Serve = Callable[..., Site]


@pytest.fixture
def world() -> World:
    found = World()
    found.jobs = [running("digits-1"), job("bert-2", reason="waits for 2 GPUs")]
    found.servers = [server("s1", {0: "digits-1", 1: "digits-1"}, barred={3: "cordoned"}), server("s2", {}, 4)]
    return found


def test_documents_have_the_texts_of_the_commands(serve: Serve, world: World) -> None:
    site = serve(world)
    data = site.json("/api/cluster")["data"]
    table = render.job_table(world.jobs, NOW_S)
    assert [title for title, _ in data["jobs"]["columns"]] == [column.title for column in table.columns]
    shown = [[cell if isinstance(cell, str) else cell[0] for cell in cells] for cells, _ in data["jobs"]["rows"]]
    assert shown == [[cell.text for cell in row.cells] for row in table.rows]
    assert [notes for _, notes in data["jobs"]["rows"]] == [list(row.notes) for row in table.rows]
    assert data["jobs"]["links"] == ["digits-1", "bert-2"]
    page = site.json("/api/jobs/digits-1")["data"]
    told = "\n".join(render.job_lines(world.jobs[0], NOW_S))
    for label, text, below in page["facts"]:
        assert f"  {label:<16} {text}".rstrip() in told
        assert all(line in told for line in below)
    parts = [text for _, text, _ in site.json("/api/jobs/digits-1/explain")["data"]["parts"]]
    whole = list(explained(world.jobs[0], world.explanation, NOW_S, None))
    assert len(parts) == len(whole)
    assert all(line.endswith(text) for text, line in zip(parts, whole, strict=True))


def test_a_waiting_jobs_page_says_when_it_starts(serve: Serve, world: World) -> None:
    site = serve(world)
    obstacle = "no forecast: there are more than 5000 jobs"
    assert site.json("/api/jobs/bert-2/starts")["data"] == {"starts": obstacle}
    world.outlook = outlook("digits-1", "bert-2")
    assert site.json("/api/jobs/bert-2/starts")["data"] == {"starts": obstacle}, "computed once a minute"
    other = serve(world)
    said = f"at {moment(NOW_S + 600.0, NOW_S)}, in 8 of 10 simulations"
    assert other.json("/api/jobs/bert-2/starts")["data"] == {"starts": said}
    assert other.json("/api/jobs/digits-1/starts")["data"] == {"starts": ""}, "it has its GPUs"
    assert other.get("/api/jobs/no-such-3/starts").status == 404


def test_gpus_are_shown_by_server_with_their_jobs(serve: Serve, world: World) -> None:
    first, second = serve(world).json("/api/cluster")["data"]["servers"]
    assert [tuple(part) for part in first["parts"]] == [
        (0, 2, "digits-1", ""), (2, 1, "", ""), (3, 1, "", "cordoned"), (4, 4, "", ""),
    ]  # fmt: skip
    assert (first["free"], second["free"], second["parts"]) == (
        "5",
        "4",
        [[0, 4, "", ""]],
    )


def test_pauses_of_resizes_have_their_time_and_length(serve: Serve, world: World) -> None:
    page = serve(world).json("/api/jobs/digits-1")["data"]
    assert [share for _, share, _, _ in page["shares"]] == [4, 1, 2]
    first, second = page["resizes"]
    assert (first["before"], first["after"], round(first["paused_s"], 3)) == (4, 1, 0.21)
    assert (first["time_s"], second["time_s"]) == (NOW_S - 1800.0, NOW_S - 600.0)
    assert first["text"].endswith("paused for 210 ms")


def test_environments_of_jobs_are_on_no_page(serve: Serve, world: World) -> None:
    spec = msgspec.structs.replace(world.jobs[0].spec, env={"WANDB_API_KEY": "s3cr3t-of-alice"})
    world.jobs[0] = msgspec.structs.replace(world.jobs[0], spec=spec)
    world.ended = [msgspec.structs.replace(world.jobs[0], job=JobId("old-9"), phase=JobPhase.FAILED, finished_s=NOW_S)]
    site = serve(world)
    for path in (
        "cluster",
        "jobs/digits-1",
        "jobs/digits-1/explain",
        "jobs/digits-1/log",
        "history",
        "quota",
        "health",
    ):
        assert b"s3cr3t" not in site.get(f"/api/{path}").body  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_data_without_control_characters(serve: Serve, world: World, text: str) -> None:
    hostile = msgspec.structs.replace(world.jobs[0], reason=text, owner=text, odd_metrics={text: "nan"})
    world.jobs = [
        msgspec.structs.replace(hostile, spec=msgspec.structs.replace(hostile.spec, command=("python", text)))
    ]
    world.servers = [server("s1", {}, barred={0: text}, trouble=text)]
    world.events = [EventView(number=1, time_s=NOW_S, kind=EventKind.TOLD, job=JobId("digits-1"), text=text)]
    world.logs["digits-1.0"] = f"{NOW_S:.3f} o {text.splitlines()[0]}\n".encode()
    world.explanation = msgspec.structs.replace(world.explanation, reasons=(text,))
    site = serve(world)
    kept = render.printable(text.splitlines()[0])
    for path in ("cluster", "jobs/digits-1", "jobs/digits-1/explain", "jobs/digits-1/log", "health"):
        answer = site.get(f"/api/{path}")
        assert answer.getheader("Content-Type") == "application/json"
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        told = json.dumps(json.loads(answer.body), ensure_ascii=False)  # type: ignore[attr-defined]
        assert json.dumps(kept, ensure_ascii=False)[1:-1] in told
        for character in ("\\u001b", "\u202e", "\u2066"):
            assert character not in told, path
    page = site.get("/jobs/" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert page.status in (200, 404)
    assert b"<script>alert" not in page.body  # type: ignore[attr-defined]


def test_the_pages_own_script_makes_no_markup_of_data() -> None:
    code = (STATIC / "app.js").read_text()
    makes_markup = r"innerHTML|outerHTML|insertAdjacent|document\.write|srcdoc|DOMParser|createContextualFragment"
    runs_text = r"\beval\b|new Function|setAttribute\(\"(?:on|style)"
    assert re.findall(f"{makes_markup}|{runs_text}", code) == []
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bon[a-z]+=|style=|https?://", page) == []
    assert sum(len(path.read_bytes()) for path in STATIC.glob("*.js")) <= 60_000


def test_a_line_of_ten_thousand_characters_is_cut_with_their_number(serve: Serve, world: World) -> None:
    world.logs["digits-1.0"] = f"{NOW_S:.3f} o {'x' * 10_000}\n".encode()
    ((_, _, _, text),) = serve(world).json("/api/jobs/digits-1/log")["data"]["lines"]
    assert text == "x" * MOST_CHARACTERS + f" … {10_000 - MOST_CHARACTERS:,} characters more"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_answered(serve: Serve, world: World, method: str) -> None:
    site = serve(world)
    for path in ("/", "/api/cluster", "/api/jobs/digits-1"):
        answer = site.get(path, method)
        assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")
    assert world.asked == {}
    assert site.get("/api/cluster", "HEAD").status == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost:{port}", True), ("127.0.0.1:{port}", True), ("[::1]:{port}", True), ("cluster.example", True),
        ("CLUSTER.example.:443", True), ("evil.example", False), ("evil.example:{port}", False), ("", False),
        ("cluster.example.evil.example", False), ("127.0.0.1.evil.example", False), ("localhost@evil.example", False),
    ],
)  # fmt: skip
def test_a_name_of_another_site_is_refused(serve: Serve, world: World, host: str, known: bool) -> None:
    site = serve(world, names=("localhost", "cluster.example"))
    answer = site.get("/api/cluster", Host=host.format(port=site.port))
    assert answer.status == (200 if known else 421)
    assert known or world.asked == {}


@pytest.mark.parametrize(
    "path", ["/", "/jobs/digits-1", "/static/app.js", "/api/cluster", "/nowhere", "/api/jobs/none-7"]
)
def test_each_answer_has_the_headers_that_browsers_need(serve: Serve, world: World, path: str) -> None:
    answer = serve(world).get(path)
    policy = answer.getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_without_the_token_nothing_is_shown(serve: Serve, world: World) -> None:
    site = serve(world, token=TOKEN)
    for path in ("/", "/api/cluster", "/static/app.js", "/?token=wrong", "/?token=", "/?token=%ff%00"):
        assert site.get(path).status == 401
    assert site.get("/", Cookie="elasticctl=wrong").status == 401
    assert site.get("/", Authorization="Bearer wrong").status == 401
    assert world.asked == {}
    assert site.get("/api/cluster", Authorization=f"Bearer {TOKEN}").status == 200


def test_the_printed_address_gives_a_cookie_and_leads_to_the_page_without_the_token(serve: Serve, world: World) -> None:
    site = serve(world, token=TOKEN)
    answer = site.get(f"/jobs/digits-1?token={TOKEN}&filter=a%20b")
    assert (answer.status, answer.getheader("Location")) == (303, "/jobs/digits-1?filter=a%20b")
    cookie = answer.getheader("Set-Cookie") or ""
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert site.get("/api/cluster", Cookie=cookie.partition(";")[0]).status == 200
    for path in ("//evil.example/", "/%5Cevil.example", "/\\evil.example"):
        there = site.get(f"{path}?token={TOKEN}").getheader("Location") or ""
        assert re.match(r"/(?![/\\])", there), there


def test_refusals_of_the_controller_have_their_reason(serve: Serve, world: World) -> None:
    world.forbidden = {"digits-1"}
    site = serve(world)
    assert site.json("/api/jobs/none-7", 404)["error"] == "there is no job 'none-7'"
    assert "not yours" in site.json("/api/jobs/digits-1/log", 403)["error"]
    assert site.json("/api/jobs/" + "x" * 500, 404)["error"].endswith("no job has so long a name")


def test_many_viewers_cost_the_controller_no_more_than_one(serve: Serve, world: World) -> None:
    site = serve(world)
    world.slow_s = 0.2
    threads = [threading.Thread(target=site.json, args=("/api/cluster",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.asked["GetJobs"] == world.asked["GetServers"] <= 2  # 20 viewers; two intervals on a slow machine


def test_while_the_controller_is_away_its_last_answer_is_shown_with_its_age(
    serve: Serve, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_of_web = pytest.importorskip("elasticd.ctl.web.server")
    monkeypatch.setattr(server_of_web.Pages._answer, "__defaults__", (0.0,))  # no interval
    site = serve(world)
    assert site.json("/api/cluster")["head"]["trouble"] == ""
    world.away = True
    time.sleep(0.2)
    told = site.json("/api/cluster")
    assert told["head"]["trouble"] == "no controller answers at tcp://head:7700 within 10 s"
    assert told["head"]["age_s"] >= 0.2
    assert told["data"]["jobs"]["links"] == ["digits-1", "bert-2"]
    assert "no controller answers" in site.json("/api/quota", 503)["error"]
    world.away = False
    world.jobs.pop()
    told = site.json("/api/cluster")
    assert (told["head"]["trouble"], told["data"]["jobs"]["links"]) == ("", ["digits-1"])


def test_what_waits_for_the_controller_is_bounded(world: World) -> None:
    go = threading.Event()

    async def ask() -> list[int]:
        thread = upstream.RequestThread("test", world.connect)
        first = thread.run(lambda shared: go.wait(PATIENCE_S))
        while thread._waiting.qsize():  # until the thread has begun with the first one
            await asyncio.sleep(0.01)
        rest = [thread.run(lambda shared, at=at: at) for at in range(upstream.MOST_WAITING)]  # type: ignore[misc]
        with pytest.raises(ClusterUnreachable, match="wait for the controller already"):
            thread.run(lambda shared: 0)
        go.set()
        assert await first
        return await asyncio.gather(*rest)

    assert asyncio.run(ask()) == list(range(upstream.MOST_WAITING))


def test_a_slow_log_holds_up_no_other_page(serve: Serve, world: World) -> None:
    site = serve(world)
    site.json("/api/cluster")
    world.slow_s = 1.5
    thread = threading.Thread(target=site.json, args=("/api/jobs/digits-1/log",))
    thread.start()
    while not world.asked["GetJob"]:
        time.sleep(0.01)
    world.slow_s = 0.0
    assert site.json("/api/quota")["data"]["quotas"] is None
    assert thread.is_alive()
    thread.join()


def test_a_followed_log_gives_each_line_once(serve: Serve, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticd.ctl.screens.sources.LOG_S", 0.0)
    site = serve(world)

    def write(first: int, last: int) -> None:
        more = "".join(f"{NOW_S + at:.3f} o line {at}\n" for at in range(first, last))
        world.logs["digits-1.0"] = world.logs.get("digits-1.0", b"") + more.encode()

    def read(tail: str = "", after: int = 0) -> Any:
        return site.json(f"/api/jobs/digits-1/log?tail={tail}&after={after}")["data"]

    write(0, 3)
    first = read()
    assert ([line[3] for line in first["lines"]], first["anew"], first["next"]) == (
        ["line 0", "line 1", "line 2"],
        True,
        3,
    )
    write(3, 5)
    more = read(first["tail"], first["next"])
    assert ([line[3] for line in more["lines"]], more["anew"]) == (["line 3", "line 4"], False)
    assert read(more["tail"], more["next"])["lines"] == []
    assert [line[3] for line in read("another", 5)["lines"]] == [f"line {at}" for at in range(5)]
    write(5, 5 + MOST_LINES)
    late = read(first["tail"], 3)
    assert (late["anew"], len(late["lines"]), late["next"]) == (True, MOST_LINES, 5 + MOST_LINES)  # some lines are gone
    world.jobs[0] = msgspec.structs.replace(world.jobs[0], phase=JobPhase.FINISHED)
    assert read(first["tail"], late["next"])["ended"] is True
    assert read(first["tail"], -1)["lines"]


def test_a_thousand_jobs_are_one_document_of_a_few_kilobytes(serve: Serve) -> None:
    site = serve(thousand())
    answer = site.get("/api/cluster", Accept_Encoding="gzip")
    assert len(answer.body) < 60_000  # type: ignore[attr-defined]
    data = site.json("/api/cluster")["data"]
    assert len(data["jobs"]["rows"]) == 1000
    assert len(list(lines(render.job_table(thousand().jobs, NOW_S), None, False))) == 1001
    older = site.json("/api/history")["data"]["next"]
    assert older
    assert len(site.json(f"/api/history?after={older}")["data"]["jobs"]["rows"]) == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), "--behind-proxy"),
        (("--host", "10.1.2.3"), "--cert"),
        (("--host", "::"), "--cert"),
        (("--host", "head.example"), "--cert"),
        (("--cert", "none.pem"), "go together"),
        (("--cert", "none.pem", "--key", "none.pem"), "no such file"),
        (("--token-file", "none"), "no such file"),
        (("--token-file", "short"), "at least 16"),
        (("--token-file", "open"), "open to others"),
    ],
)
def test_what_would_expose_the_pages_is_refused_in_one_sentence(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    for name, text, mode in (("short", "abc", 0o600), ("open", TOKEN, 0o644)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    command = [ELASTICCTL, "--controller", "ipc:///nowhere", "web", "--port", "0", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert words in line


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_pages_are_served_by_tls_to_who_has_the_token_of_the_file(tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*made, *names], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    files = [f"--{option}={tmp_path / name}" for option, name in (("cert", "cert.pem"), ("key", "key.pem"))]
    where = ["--controller", "ipc:///nowhere/at/all"]
    with web(where, "--host", "0.0.0.0", "--name", "localhost", *files, f"--token-file={tmp_path / 'token'}") as pages:
        assert re.fullmatch(r"https://localhost:\d+/", pages.url), "a token that is kept is printed"
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        asked = Request(pages.url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(asked, timeout=PATIENCE_S, context=trusted) as answer:
            assert answer.status == 200
            assert b"elasticctl" in answer.read()
        with pytest.raises(HTTPError, match="401"):
            urlopen(pages.url, timeout=PATIENCE_S, context=trusted)
        asked.full_url = f"{pages.url}api/cluster"
        with pytest.raises(HTTPError, match="503"):  # no controller is there
            urlopen(asked, timeout=PATIENCE_S, context=trusted)


class Web:
    """A running `elasticctl web`. `where`: options that name the cluster."""

    def __init__(self, where: Sequence[str], *options: str) -> None:
        command = [ELASTICCTL, *where, "web", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url, _, self.token = self.process.stdout.readline().strip().partition("?token=")

    def json(self, path: str) -> Any:
        request = Request(self.url.rstrip("/") + path, headers={"Authorization": f"Bearer {self.token}"})
        with urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def until(self, path: str, found: Callable[[Any], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not found(told := self.json(path)):
            assert time.monotonic() < deadline, told
            time.sleep(0.2)
        return told


@contextlib.contextmanager
def web(where: Sequence[str], *options: str) -> Iterator[Web]:
    running = Web(where, *options)
    try:
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(timeout=PATIENCE_S) == 130


@pytest.mark.cluster
def test_a_real_cluster_is_shown_and_its_return_after_a_stop_is_noticed(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"

    def elasticctl(*words: str) -> str:
        return subprocess.run(
            [ELASTICCTL, "--dir", str(directory), *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    elasticctl("up", "--gpus", "2")
    try:
        hostile = "<script>alert(1)</script> \x1b[31mred"
        code = f"import time; print({hostile!r}, flush=True); time.sleep(600)"
        name = elasticctl("submit", "--gpus", "1", "--env", "SECRET=s3cr3t", "--", sys.executable, "-c", code)
        with web(["--dir", str(directory)]) as pages:
            assert pages.url.startswith("http://127.0.0.1:")
            pages.until("/api/cluster", lambda told: "running" in str(told["data"]["jobs"]["rows"]))
            told = pages.until(f"/api/jobs/{name}/log", lambda told: told["data"]["lines"])
            assert told["data"]["lines"][0][3] == "<script>alert(1)</script> red"
            assert pages.json(f"/api/jobs/{name}")["data"]["events"]
            assert pages.json(f"/api/jobs/{name}/explain")["data"]["parts"]
            for path in ("/api/history", "/api/quota", "/api/health"):
                assert pages.json(path)["head"]["trouble"] == ""
            assert "s3cr3t" not in json.dumps(pages.json(f"/api/jobs/{name}"))
            elasticctl("down")
            pages.until("/api/cluster", lambda told: told["head"]["trouble"])
            elasticctl("up", "--gpus", "2")
            pages.until("/api/cluster", lambda told: not told["head"]["trouble"])
    finally:
        elasticctl("down", "--purge", "--yes")
