"""`elasticctl exec`: a command beside a running worker, or a shell there.

Input and output travel in messages (`protocol.streams`). They are exchanged at once while there are bytes to transfer,
and otherwise at growing intervals. If stdin is a terminal, the command gets a terminal as well. This terminal then
passes each key on, and prints each byte as it arrives. Ctrl-C is passed on, too: it interrupts the command, not this
client.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Annotated

import typer

from ..protocol.errors import ElasticError, UserError
from ..protocol.messages import Exec, ExecAllowed, ExecIO, ExecOutput
from ..protocol.streams import MAX_INPUT_BYTES, Input, Output, Terminal
from . import completion
from .context import Context, of, say

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25  # pauses between exchanges while no byte is transferred
PAUSE_GROWS = 1.3
ANSWERED_WITHIN_S = 25.0  # the agent hangs up after a slightly longer silence


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command("exec")(execute)


def execute(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False, autocompletion=completion.jobs)],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND ...", show_default=False)] = None,
    rank: Annotated[int, typer.Option(min=0, help="Beside the worker of this rank.")] = 0,
) -> None:
    """Run a command beside a running worker of a job, such as `-- nvidia-smi`, or a shell: `-- bash`. Exit with its code."""
    words = tuple(command or ())
    if not words:
        raise UserError(f"which command? Such as `elasticctl exec {shlex.quote(job)} -- bash`")
    raise typer.Exit(converse(of(context), job, words, rank))


def converse(shared: Context, job: str, words: tuple[str, ...], rank: int = 0) -> int:
    """Run a command beside a worker, with this process's input and output. Returns its exit code."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    allowed = shared.ask(Exec(job=job, command=words, rank=rank, terminal=on_terminal), ExecAllowed)
    conversation = _Conversation(shared, allowed.exec, words, on_terminal)
    with _raw() if on_terminal else contextlib.nullcontext():
        output = conversation.hold()
    if output.reason:
        say(f"elasticctl: {output.reason}")
    return output.exit_code or 0


class _Conversation:
    """The exchanges with one command."""

    def __init__(self, shared: Context, name: str, words: tuple[str, ...], terminal: bool) -> None:
        self._shared = shared
        self._name = name
        self._words = words  # the command; empty once it is known to have been started
        self._terminal = terminal
        self._data = b""  # input that the agent has not confirmed
        self._offset = 0  # number of confirmed input bytes, before `_data`
        self._ended = False  # the input has ended
        self._received = 0

    def hold(self) -> Output:
        """Exchange messages until the command has ended. Returns the last output. Raises the errors of `Client.ask`."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                output = self._exchange()
                moved = self._take(output)
                if output.exit_code is not None:
                    return output
                pause_s = FIRST_PAUSE_S if moved else min(LONGEST_PAUSE_S, pause_s * PAUSE_GROWS)
                if self._wait(0.0 if output.chunks else pause_s):
                    pause_s = FIRST_PAUSE_S
        except (KeyboardInterrupt, BrokenPipeError):
            with contextlib.suppress(ElasticError):
                self._exchange(hang_up=True)
            raise

    def _exchange(self, hang_up: bool = False) -> Output:
        given = Input(
            data=self._data,
            offset=self._offset,
            ended=self._ended,
            received=self._received,
            terminal=_terminal() if self._terminal else None,
            hang_up=hang_up,
        )
        answer = self._shared.ask(
            ExecIO(exec=self._name, input=given, command=self._words), ExecOutput, ANSWERED_WITHIN_S
        )
        self._words = ()
        return answer.output

    def _take(self, output: Output) -> bool:
        """Print the new output. Returns whether any byte of input or output was transferred."""
        taken = max(0, min(len(self._data), output.taken - self._offset))
        self._data, self._offset = self._data[taken:], self._offset + taken
        skip, before = self._received - output.offset, self._received
        for chunk in output.chunks:
            new = chunk.data[max(0, skip) :]
            skip -= len(chunk.data)
            _write(sys.stderr.fileno() if chunk.error else sys.stdout.fileno(), new)
            self._received += len(new)
        return bool(taken) or self._received > before

    def _wait(self, pause_s: float) -> bool:
        """Wait for input, but no longer than `pause_s`. Returns whether input has arrived."""
        until = time.monotonic() + pause_s
        if self._ended or len(self._data) >= MAX_INPUT_BYTES:
            time.sleep(pause_s)
            return False
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return False
        data = os.read(sys.stdin.fileno(), MAX_INPUT_BYTES - len(self._data))
        self._data += data
        self._ended = not data
        return True


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _terminal() -> Terminal:
    size = os.get_terminal_size(sys.stdin.fileno())  # the variables COLUMNS and LINES may be outdated
    return Terminal(name=os.environ.get("TERM", "dumb"), rows=size.lines, columns=size.columns)


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Put the terminal into raw mode while the body runs, so that each key is passed on."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # TCSADRAIN keeps input that was typed ahead
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
