"""Input and output of a command that runs beside a worker (`elasticctl exec`), as client, controller and agent exchange them.

Each exchange repeats what has not been confirmed, so a lost or repeated message neither loses nor doubles a byte: `Input.offset`
counts the bytes of input before `data`, `Output.taken` those that the command's standard input has taken; `Input.received` counts
the bytes of output that have arrived, `Output.offset` those before the first chunk.
"""

from __future__ import annotations

from .model import Value

MAX_INPUT_BYTES = 32 << 10  # in one message
MAX_OUTPUT_BYTES = 128 << 10  # in one message, and kept for one command by its agent: then the command waits
MAX_COMMAND_BYTES = 96 << 10  # of all its words: Linux allows 128 KiB in one
MAX_TERMINAL_NAME = 64


class Terminal(Value, frozen=True, kw_only=True):
    """The terminal of a client."""

    name: str  # TERM
    rows: int
    columns: int


class Input(Value, frozen=True, kw_only=True):
    """Input of a client to a command, and the amount of output that the client has received."""

    data: bytes = b""
    offset: int = 0
    ended: bool = False  # nothing follows `data`
    received: int = 0
    terminal: Terminal | None = None  # None: pipes
    hang_up: bool = False  # the client leaves: the command is to end


class Chunk(Value, frozen=True, kw_only=True):
    data: bytes
    error: bool = False  # of standard error


class Output(Value, frozen=True, kw_only=True):
    """Output of a command. `exit_code`: set with the last chunks, when the command has ended; 128 + N: killed by signal N."""

    offset: int = 0
    taken: int = 0
    chunks: tuple[Chunk, ...] = ()
    exit_code: int | None = None
    reason: str = ""  # why it was ended by others
