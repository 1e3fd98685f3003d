"""Choice of the controller to ask first: the one that answered last, also in an earlier call of `elasticctl`.

So a dead controller delays one command by a second, and not each command. A file in the user's cache directory holds
the position of the address in the configured list. If that file cannot be read or written, the list is tried from its
start.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path


def cache() -> Path:
    """Return this user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticctl"


class Memory:
    """Memory of the controller that answered last, for one list of addresses."""

    def __init__(self, addresses: Sequence[str], directory: Path) -> None:
        self._path = directory / f"endpoint-{zlib.crc32(','.join(addresses).encode()):08x}"
        self._count = len(addresses)
        self._known = self._read() if self._count > 1 else 0

    @property
    def first(self) -> int:
        """Position of the address to ask first."""
        return self._known

    def answered(self, endpoint: int) -> None:
        """Record that the controller at this position leads."""
        if endpoint == self._known:
            return
        self._known = endpoint
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written = self._path.with_suffix(f".{os.getpid()}")
            written.write_text(f"{endpoint}\n", encoding="ascii")
            written.replace(self._path)

    def _read(self) -> int:
        try:
            found = int(self._path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0
        return found if 0 <= found < self._count else 0
