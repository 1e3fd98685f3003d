"""Asking many hosts over the system's ssh: one program there, one document to its standard input, one line as its answer.

Everything that is to be kept secret goes through the standard input, which nobody else on either machine can read; the command
line names the interpreter and the module, and nothing else. Names, users, ports, keys and jump hosts are ssh's business: whatever
~/.ssh/config says holds here, too.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ..protocol.errors import UserError
from . import render
from .hosts import Host
from .remote import ANSWER, Answer, Failed, Request

DEFAULT_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
AT_ONCE = 16  # hosts
LIMIT_S = 90.0  # of one question, with its connection
MOST_SAID = 300  # characters of what ssh, or the program there, complains of


class Unanswered(Exception):
    """A host did not do what it was asked. The text is the reason, for a person."""


class Ssh:
    """The way to the hosts: `command` as a shell would read it, and the interpreter there that has elasticctl."""

    def __init__(self, command: str, python: str) -> None:
        """Raises UserError."""
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--ssh: {error}") from None
        if not self._command:
            raise UserError("--ssh: is empty")
        self._python = python

    def ask_all(self, requests: Mapping[Host, Request]) -> dict[Host, Answer | Unanswered]:
        """What each host answers, or why it does not."""
        hosts = list(requests)
        with ThreadPoolExecutor(max(1, min(AT_ONCE, len(hosts)))) as pool:
            return dict(zip(hosts, pool.map(lambda host: self._tried(host, requests[host]), hosts), strict=True))

    def ask(self, host: Host, request: Request) -> Answer:
        """What `host` answers. Raises Unanswered."""
        line = f"{shlex.quote(host.python or self._python)} -m elasticd.ctl.remote"
        command = [*self._command, host.target, line]
        try:
            done = subprocess.run(command, input=msgspec.json.encode(request), capture_output=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Unanswered(f"no answer within {LIMIT_S:.0f} s") from None
        except OSError as error:
            raise Unanswered(f"{command[0]}: {error.strerror}") from None
        return _answer(done)

    def _tried(self, host: Host, request: Request) -> Answer | Unanswered:
        try:
            return self.ask(host, request)
        except Unanswered as reason:
            return reason


def _answer(done: subprocess.CompletedProcess[bytes]) -> Answer:
    """The last line with an answer: what a login prints comes before it. Raises Unanswered."""
    lines = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if not lines:
        raise Unanswered(_complaint(done))
    try:
        found: Answer = msgspec.json.decode(lines[-1].removeprefix(ANSWER), type=Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unanswered("answers with what is no answer: is there another version of elasticctl?") from None
    if isinstance(found, Failed):
        raise Unanswered(found.reason)
    return found


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    said: Sequence[str] = [render.printable(line.decode(errors="replace")).strip() for line in done.stderr.splitlines()]
    last = next((line for line in reversed(said) if line), "")
    return last[:MOST_SAID] or f"exit code {done.returncode}, and not a word"
