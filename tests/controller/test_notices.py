"""Notices: of which events, recorded until they are delivered, by channels that may fail or hang."""

from __future__ import annotations

import contextlib
import email
import http.server
import json
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elasticd.controller import notices, notifying
from elasticd.controller.events import NoticeDone
from elasticd.controller.notices import Notice
from elasticd.controller.notifying import Notifier, NotifyConfig, check
from elasticd.controller.recovery import durable
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import Cancel, EventKind, Submit
from elasticd.protocol.model import JobId, Notify

from .world import World, job_spec

HOSTILE = "a job\r\nBcc: all@example.org\n\n$(touch /tmp/hacked) `id` ' \" \\ \x00 ü"


def pending(world: Any) -> list[tuple[str, str]]:
    return [(notice.job, notice.event.value) for notice in world.machine.cluster.notices.pending.values()]


# ------------------------------------------------------------------------------------------------------ which events


def test_only_what_was_asked_for_is_told_and_each_notice_stands_until_it_is_done() -> None:
    world = World({"s1": 4})
    told = world.submit(job_spec("told", 1, 1, notify=(Notify.START, Notify.END))).id
    fails = world.submit(job_spec("fails", 1, 1, notify=(Notify.FAIL,))).id
    mute = world.submit(job_spec("mute", 1, 1)).id
    for job in (told, fails, mute):
        world.settle(job)
    assert pending(world) == [(told, "started")]
    world.ask(Cancel(job=told))
    world.ask(Cancel(job=mute))
    for _ in range(2):  # twice without progress: its script is at fault
        for worker in world.running(fails):
            world.exit(worker, 1, "ValueError")
        world.pass_time(40.0)
        world.arrive(fails)
    assert pending(world) == [(told, "started"), (told, "cancelled"), (fails, "failed")]
    assert durable(world.machine.cluster) == world.store
    world.restart()
    assert pending(world) == [(told, "started"), (told, "cancelled"), (fails, "failed")], (
        "the next controller delivers them"
    )
    for number in list(world.machine.cluster.notices.pending):
        world.feed(NoticeDone(number))
        world.feed(NoticeDone(number))
        world.turn()
    assert pending(world) == []
    assert durable(world.machine.cluster) == world.store
    world.restart()
    assert pending(world) == []


def test_a_store_does_not_fill_with_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "KEPT_NOTICES", 3)
    world = World({"s1": 4})
    for number in range(5):
        world.ask(Cancel(job=world.submit(job_spec(f"j{number}", 1, 1, notify=(Notify.END,))).id))
    assert [job for job, _ in pending(world)] == ["j2-3", "j3-4", "j4-5"]
    assert len(world.machine.cluster.notices.pending) == 3
    assert durable(world.machine.cluster) == world.store


def test_a_user_is_told_if_no_channel_is_there() -> None:
    answer = World({"s1": 1}).ask(Submit(spec=job_spec(notify=(Notify.END,))))
    assert any("no notice is sent" in note for note in answer.notes)
    assert not World({"s1": 1}, notifies=True).ask(Submit(spec=job_spec(notify=(Notify.END,)))).notes


# ---------------------------------------------------------------------------------------------------------- channels


def notice(number: int = 1, text: str = "finished", user: str = "ada") -> Notice:
    return Notice(
        number=number,
        event=EventKind.FINISHED,
        job=JobId("digits-3"),
        name="digits",
        user=user,
        time_s=1e9,
        text=text,
    )


@contextmanager
def delivering(options: NotifyConfig, *these: Notice) -> Iterator[Callable[[], list[int]]]:
    """A notifier with these notices; gives a function that waits for those that are done."""
    woken = threading.Event()
    notifier = Notifier(options, woken.set)
    done: list[int] = []

    def wait() -> list[int]:
        give_up_at = time.monotonic() + 60.0
        while len(done) < len(these):
            assert time.monotonic() < give_up_at, done
            woken.wait(0.1)
            done.extend(notifier.take_done())
        return done

    try:
        notifier.offer({each.number: each for each in these})
        yield wait
    finally:
        notifier.close()


def program(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


KEEP = "import json, os, sys\nopen({0!r}, 'a').write(json.dumps([sys.argv[1:], dict(os.environ), sys.stdin.read()]) + '\\n')\n"


def test_a_command_gets_a_hostile_text_as_a_variable_and_never_as_a_word(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = (program(tmp_path / "tell", KEEP.format(str(out))), "--quietly")
    with delivering(NotifyConfig(command=command), notice(1, HOSTILE), notice(2, "plain")) as wait:
        assert wait() == [1, 2]
    first, second = map(json.loads, out.read_text().splitlines())
    assert first[0] == ["--quietly"]
    assert first[1]["ELASTICCTL_TEXT"] == HOSTILE.replace("\0", "?")
    assert json.loads(first[2])["text"] == HOSTILE
    assert (second[1]["ELASTICCTL_JOB"], second[1]["ELASTICCTL_EVENT"]) == ("digits-3", "finished")
    assert not Path("/tmp/hacked").exists()


def test_mail_has_the_text_in_its_body_alone_and_no_address_from_an_odd_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    mail = NotifyConfig(mail_to="{user}@lab.example", sendmail=program(tmp_path / "sendmail", KEEP.format(str(out))))
    users = ("-oQ/tmp", "a b", "ada,eve@evil.example", "ada\nBcc: eve@evil.example", "")
    odd = [notice(number, "x", user) for number, user in enumerate(users, 2)]
    with delivering(mail, notice(1, HOSTILE.replace("\0", "")), *odd) as wait:
        assert wait() == [1, 2, 3, 4, 5, 6]
    (only,) = map(json.loads, out.read_text().splitlines())
    assert only[0] == ["-i", "-f", "elasticctl", "--", "ada@lab.example"]
    message = email.message_from_string(only[2])
    assert message["To"] == "ada@lab.example"
    assert message["Bcc"] is None
    assert message["Subject"] == "digits-3: finished"
    assert "is no plain name of a user" in caplog.text


class Hook(http.server.BaseHTTPRequestHandler):
    """Refuses the first request, and answers the second by what is not HTTP."""

    seen: list[Any] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.headers["Authorization"], json.loads(body)["number"]))
        if len(self.seen) == 2:
            self.wfile.write(b"nonsense\r\n\r\n")
            return
        self.send_response(503 if len(self.seen) == 1 else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_webhook_that_fails_is_tried_again_and_another_channel_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "LONGEST_PAUSE_S", 0.05)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("secret\n")
    out = tmp_path / "out"
    options = NotifyConfig(
        command=(program(tmp_path / "tell", KEEP.format(str(out))),),
        webhook=f"http://127.0.0.1:{server.server_address[1]}/",
        webhook_token_file=str(tmp_path / "token"),
    )
    try:
        with delivering(options, notice(1), notice(2)) as wait:
            assert wait() == [1, 2]
    finally:
        server.shutdown()
        server.server_close()
    assert Hook.seen == [("Bearer secret", number) for number in (1, 1, 1, 2)]
    assert len(out.read_text().splitlines()) == 2, "the command has each once"


class Redirect(http.server.BaseHTTPRequestHandler):
    """Sends whoever posts here to another address."""

    to = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(302)
        self.send_header("Location", self.to)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Keeps the headers of whoever comes."""

    seen: list[Any] = []

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_webhook_that_sends_the_notice_elsewhere_gets_the_token_there_from_nobody_and_has_not_taken_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifying, "GIVE_UP_S", 0.0)
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in (Redirect, Elsewhere)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    hook, other = (f"http://127.0.0.1:{server.server_address[1]}/" for server in servers)
    monkeypatch.setattr(Redirect, "to", other)
    (tmp_path / "token").write_text("secret")
    try:
        with delivering(NotifyConfig(webhook=hook, webhook_token_file=str(tmp_path / "token")), notice(1)) as wait:
            assert wait() == [1]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
    assert Elsewhere.seen == []
    assert "is given up: the webhook: it answers 302" in caplog.text


def test_a_webhook_whose_answer_never_ends_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifying, "ATTEMPT_S", 0.5)
    monkeypatch.setattr(notifying, "GIVE_UP_S", 0.0)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.1):
                    connection.sendall(b"x")

        threading.Thread(target=drip, daemon=True).start()
        with delivering(NotifyConfig(webhook=f"http://127.0.0.1:{listener.getsockname()[1]}/"), notice(1)) as wait:
            assert wait() == [1]
        over.set()
    assert "is given up: the webhook: its answer has no end after 0.5 s" in caplog.text


def test_a_channel_that_hangs_is_cut_off_and_the_turn_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "ATTEMPT_S", 0.5)
    monkeypatch.setattr(notifying, "GIVE_UP_S", 0.0)
    command = (program(tmp_path / "hang", "import time\ntime.sleep(600)\n"),)
    began = time.process_time()
    with delivering(NotifyConfig(command=command), *[notice(number) for number in range(1, 3)]) as wait:
        assert wait() == [1, 2], "given up"
    assert time.process_time() - began < 5.0


def test_without_a_channel_notices_are_done(tmp_path: Path) -> None:
    with delivering(NotifyConfig(), notice(7)) as wait:
        assert wait() == [7]


def test_a_program_that_is_not_there_is_an_error_of_the_operators(tmp_path: Path) -> None:
    for options, field in (
        (NotifyConfig(command=("tell",)), "command: tell"),
        (NotifyConfig(mail_to="a@b", sendmail=str(tmp_path / "none")), f"sendmail: {tmp_path}/none"),
        (NotifyConfig(webhook="http://x", webhook_token_file=str(tmp_path / "none")), "webhook_token_file"),
    ):
        with pytest.raises(OperatorError, match=field):
            check(options, "notify")
