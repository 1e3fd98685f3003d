"""Requests to many hosts over the system's ssh: one program there, one document to its standard input, one line as its
answer.

Secrets go through the standard input alone, which no other account on either machine can read; the command line names
only the interpreter and the module. Names, users, ports, keys and jump hosts are left to ssh: ~/.ssh/config applies
here, too.
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
AT_ONCE = 16  # hosts that are contacted at the same time
LIMIT_S = 90.0  # time limit of one request, connection included
MOST_SAID = 300  # shown characters of an error message of ssh, or of the host's program


class Unanswered(Exception):
    """A host did not carry out a request. The text is the reason, for a person."""


class Ssh:
    """Connections to hosts. `command`: ssh with its options, as a shell would read it; `python`: the hosts' interpreter
    with elasticctl.
    """

    def __init__(self, command: str, python: str) -> None:
        """Prepare connections. Raises UserError if `command` is not a command."""
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--ssh: {error}") from None
        if not self._command:
            raise UserError("--ssh: is empty")
        self._python = python

    def ask_all(self, requests: Mapping[Host, Request]) -> dict[Host, Answer | Unanswered]:
        """Return each host's answer, or the reason of its failure."""
        hosts = list(requests)
        with ThreadPoolExecutor(max(1, min(AT_ONCE, len(hosts)))) as pool:
            return dict(zip(hosts, pool.map(lambda host: self._tried(host, requests[host]), hosts), strict=True))

    def ask(self, host: Host, request: Request) -> Answer:
        """Return the answer of `host`. Raises Unanswered."""
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
    """Return the last line with an answer; a login may print text before it. Raises Unanswered."""
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
