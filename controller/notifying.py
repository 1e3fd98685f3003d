"""Delivery of notices by a command, a webhook, and mail (option `notify` of controller.yaml).

Each channel has a thread of its own, which delivers one notice after the other, so the controller's turn waits for no
delivery, and a channel that hangs delays no other. An attempt takes at most ATTEMPT_S; a failed one is repeated after
1, 2, 4 ... s, at most LONGEST_PAUSE_S, and given up after GIVE_UP_S. The queue of a channel is bounded by
`notices.KEPT_NOTICES`.

A notice holds texts of users. None of them becomes part of a command line or a header: a command receives them as
environment variables and as JSON on its standard input, a webhook as JSON, and a mail in its body. Only a mail's
address contains a user's name, if that consists of letters, digits and a few signs.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec

from ..protocol.errors import OperatorError
from .notices import Notice

log = logging.getLogger(__name__)

ATTEMPT_S = 10.0
LONGEST_PAUSE_S = 300.0
GIVE_UP_S = 86_400.0
PLAIN_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
MAX_OUTPUT = 400  # characters of a failed command's output, in the log


ADDRESS = r"^([^\s<>,;-][^\s<>,;]*@[^\s<>,;]+)?$"


class NotifyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Channels for notices; each configured channel gets all notices. `mail_to`: {user} stands for the job's user."""

    command: tuple[str, ...] = ()
    webhook: Annotated[str, msgspec.Meta(pattern=r"^(https?://\S+)?$")] = ""
    webhook_token_file: str | None = None
    mail_to: Annotated[str, msgspec.Meta(pattern=ADDRESS)] = ""
    mail_from: Annotated[str, msgspec.Meta(pattern=r"^[^\s<>,;-][^\s<>,;]*$")] = "elasticctl"
    sendmail: str = "/usr/sbin/sendmail"

    @property
    def any(self) -> bool:
        return bool(self.command or self.webhook or self.mail_to)


class Way(Protocol):
    """A way to deliver a notice."""

    def __call__(self, notice: Notice) -> None:
        """Deliver a notice. Raises ValueError if it must not be tried again.

        Raises OSError, subprocess.SubprocessError or http.client.HTTPException if it may be tried again.
        """


def document(notice: Notice) -> dict[str, Any]:
    """Return a notice as a JSON document."""
    return {
        "number": notice.number,
        "event": notice.event.value,
        "job": notice.job,
        "name": notice.name,
        "user": notice.user,
        "time_s": notice.time_s,
        "text": notice.text,
    }


def variables(notice: Notice) -> dict[str, str]:
    """Return a notice as environment variables of a command: ELASTICCTL_JOB, ELASTICCTL_EVENT ..."""
    return {f"ELASTICCTL_{name.upper()}": str(value).replace("\0", "?") for name, value in document(notice).items()}


def _run(argv: tuple[str, ...], fed: bytes, more: Mapping[str, str]) -> None:
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env={**environment, **more},
        start_new_session=True,
    ) as child:
        try:
            output, _ = child.communicate(fed, timeout=ATTEMPT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            raise
    if child.returncode:
        text = output.decode(errors="replace").strip()[-MAX_OUTPUT:]
        raise OSError(
            f"{argv[0]} has ended with {child.returncode}: {text}"
            if text
            else f"{argv[0]} has ended with {child.returncode}"
        )


class Command:
    """Delivery by a command that the operator has configured; no shell runs it."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        self._argv = argv

    def __call__(self, notice: Notice) -> None:
        _run(self._argv, msgspec.json.encode(document(notice)), variables(notice))


class _Cut(urllib.request.AbstractHTTPHandler):
    """Cuts a connection whose answer has not come within ATTEMPT_S. (`timeout` limits each wait for a byte alone.)"""

    def do_open(self, http_class: Any, req: urllib.request.Request, **arguments: Any) -> http.client.HTTPResponse:
        opened: list[http.client.HTTPConnection] = []
        late = threading.Event()

        def connection(*place: Any, **options: Any) -> http.client.HTTPConnection:
            opened.append(http_class(*place, **options))
            return opened[-1]

        def cut() -> None:
            late.set()
            for sock in [one.sock for one in opened if one.sock is not None]:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(ATTEMPT_S, cut)
        timer.start()
        try:
            answer = super().do_open(connection, req, **arguments)
        finally:
            timer.cancel()
        if late.is_set():  # the headers end where the connection was cut
            answer.close()
            raise TimeoutError(f"its answer has no end after {ATTEMPT_S:g} s")
        return answer


class _Http(_Cut, urllib.request.HTTPHandler):
    pass


class _Https(_Cut, urllib.request.HTTPSHandler):
    pass


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the token is for the configured address alone, and a POST would become a GET."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        raise OSError(f"it answers {code}, and would have the notice at another address")


class Webhook:
    """Delivery by an HTTP POST of JSON."""

    def __init__(self, url: str, token_file: str | None) -> None:
        self._url, self._token_file = url, token_file

    def __call__(self, notice: Notice) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "elasticctl"}
        if self._token_file is not None:
            headers["Authorization"] = (
                f"Bearer {Path(self._token_file).expanduser().read_text(encoding='ascii').strip()}"
            )
        request = urllib.request.Request(self._url, msgspec.json.encode(document(notice)), headers, method="POST")
        urllib.request.build_opener(_Http, _Https, _Stay).open(request, timeout=ATTEMPT_S).close()


class Mail:
    """Delivery by mail to the job's user."""

    def __init__(self, options: NotifyConfig) -> None:
        self._options = options

    def __call__(self, notice: Notice) -> None:
        options = self._options
        if "{user}" in options.mail_to and not PLAIN_USER.fullmatch(notice.user):
            raise ValueError(f"{notice.user[:64]!r} is no plain name of a user, so no address follows from it")
        address = options.mail_to.replace("{user}", notice.user)
        mail = EmailMessage()
        mail["From"], mail["To"] = options.mail_from, address
        mail["Subject"] = f"{notice.job}: {notice.event.value}"
        mail["Auto-Submitted"] = "auto-generated"
        mail["Message-ID"] = f"<{notice.number}.{notice.job}@elasticctl>"  # the same in a repetition
        when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(notice.time_s))
        mail.set_content(f"{notice.job} ({notice.name}, {notice.user})\n{when}  {notice.event.value}: {notice.text}\n")
        _run((options.sendmail, "-i", "-f", options.mail_from, "--", address), mail.as_bytes(), {})


class Channel:
    """One channel: a way of delivery with its thread and its queue."""

    def __init__(self, name: str, way: Way, done: Callable[[int], None]) -> None:
        self.name = name
        self._way = way
        self._done = done
        self._queue: deque[Notice] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"notices by {name}", daemon=True)
        self._thread.start()

    def put(self, notice: Notice) -> None:
        with self._changed:
            self._queue.append(notice)
            self._changed.notify()

    def clear(self) -> None:
        with self._changed:
            self._queue.clear()

    def close(self) -> None:
        """End the thread soon; an attempt in progress ends by itself."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify()

    def _work(self) -> None:
        while (notice := self._next()) is not None:
            since_s, pause_s = time.monotonic(), 1.0
            while not self._tried(notice, since_s):
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause_s)
                    if self._closed:
                        return
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _next(self) -> Notice | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue)
            return None if self._closed else self._queue.popleft()

    def _tried(self, notice: Notice, since_s: float) -> bool:
        """Return whether the notice is delivered, or given up."""
        try:
            self._way(notice)
        except ValueError as error:  # a token that cannot be a header raises it, too
            log.warning("the notice of %s (%s) is not sent by %s: %s", notice.job, notice.event.value, self.name, error)
        except (OSError, subprocess.SubprocessError, http.client.HTTPException) as error:
            if time.monotonic() - since_s < GIVE_UP_S:
                log.warning("the notice of %s (%s) waits for %s: %s", notice.job, notice.event.value, self.name, error)
                return False
            log.error("the notice of %s (%s) is given up: %s: %s", notice.job, notice.event.value, self.name, error)
        self._done(notice.number)
        return True


class Notifier:
    """All channels. `offer` and `take_done` are called by the controller's turn, and never wait for a delivery."""

    def __init__(self, options: NotifyConfig, wake: Callable[[], None]) -> None:
        """Start a thread for each channel.

        `wake`, called from these threads, makes the controller's loop take a turn.
        """
        self._wake = wake
        self._lock = threading.Lock()
        self._left: dict[int, set[int]] = {}  # by number of the notice: the channels that have yet to deliver it
        self._done: deque[int] = deque()
        self._newest = -1  # number of the last notice that was offered
        ways: list[tuple[str, Way]] = []
        if options.command:
            ways.append((f"the command {options.command[0]}", Command(options.command)))
        if options.webhook:
            ways.append(("the webhook", Webhook(options.webhook, options.webhook_token_file)))
        if options.mail_to:
            ways.append(("mail", Mail(options)))
        self._channels = [Channel(name, way, partial(self._on_done, at)) for at, (name, way) in enumerate(ways)]

    def offer(self, pending: dict[int, Notice]) -> None:
        """Deliver the new ones of these notices, in ascending order. Without a channel they count as done."""
        fresh = list(takewhile(lambda notice: notice.number > self._newest, reversed(pending.values())))
        for notice in reversed(fresh):
            number = self._newest = notice.number
            with self._lock:
                self._left[number] = set(range(len(self._channels)))
                if not self._channels:
                    self._done.append(number)
            for channel in self._channels:
                channel.put(notice)

    def take_done(self) -> list[int]:
        """Return the notices that were delivered or given up since the last call."""
        with self._lock:
            found = list(self._done)
            self._done.clear()
            for number in found:
                self._left.pop(number, None)
        return found

    def forget(self) -> None:
        """Stop delivering, as another controller leads now; attempts in progress end by themselves."""
        for channel in self._channels:
            channel.clear()
        self._newest = -1
        with self._lock:
            self._left.clear()
            self._done.clear()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def _on_done(self, channel: int, number: int) -> None:
        with self._lock:
            left = self._left.get(number)
            if left is None:
                return
            left.discard(channel)
            if left:
                return
            self._done.append(number)
        self._wake()


def check(options: NotifyConfig, where: str) -> None:
    """Check that a command and a file of a token are there. Raises OperatorError, with `where`."""
    for field, path in (
        ("command", options.command[0] if options.command else None),
        ("sendmail", options.sendmail if options.mail_to else None),
    ):
        if path is not None and not (os.path.isabs(path) and os.access(path, os.X_OK)):
            raise OperatorError(f"{where}.{field}: {path} is no absolute path of a program that can be run")
    token = options.webhook_token_file
    if token is not None and not os.access(Path(token).expanduser(), os.R_OK):
        raise OperatorError(f"{where}.webhook_token_file: {token} cannot be read")
