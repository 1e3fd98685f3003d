"""Transfer of `torch.compile` artefacts to joining workers, and notices about long compilations.

A joining worker would compile code that the others compiled long ago, and they would wait for it. So the worker that
gives the state also gives the artefacts of its compilations (`torch.compiler.save_cache_artifacts`, since torch 2.6),
with the state's header, and the joining worker puts them into its caches before it runs the model. Artefacts are code:
the caches are unpickled and called. The training network does not authenticate peers, so artefacts are accepted only
with a message authentication code made with the job's secret key, which only its workers have; and not at all without a
key, or from another version of torch. Artefacts are in no checkpoint. The caches ignore code compiled for another GPU.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .events import Noticed

log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
TOLD_AFTER_S = 60.0  # seconds of compilation after which a notice is sent
_PURPOSE = b"compiled"


class Compilations:
    """Time that this process has compiled, all graphs together. torch calls it when a compilation begins and ends."""

    def __init__(self, tell: Callable[[Noticed], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._watched = False
        self._began: float | None = None  # beginning of the compilation in progress (monotonic, s)
        self._before_s = 0.0  # duration of earlier compilations
        self._told_s = 0.0
        self._timer: threading.Timer | None = None

    def watch(self) -> None:
        """Watch compilations from now on, if the script has loaded torch's compiler."""
        if self._watched or "torch._dynamo" not in sys.modules:
            return
        try:
            from torch._dynamo.callback import on_compile_end, on_compile_start
        except ImportError:  # this version of torch has no such callbacks
            return
        self._watched = True
        on_compile_start(self.begins)
        on_compile_end(self.ends)

    def begins(self, *_: object) -> None:
        """Take note that a compilation begins."""
        with self._lock:
            if self._began is not None:
                return
            self._began = time.monotonic()
            left_s = TOLD_AFTER_S - self._before_s
            if left_s > 0:
                self._timer = threading.Timer(left_s, self._takes_long)
                self._timer.daemon = True
                self._timer.start()

    def ends(self, *_: object) -> None:
        """Take note that a compilation has ended. Another notice is sent when the total is 1.5 times that of the last
        one.
        """
        with self._lock:
            if self._began is None:
                return
            self._before_s += time.monotonic() - self._began
            self._began = None
            if self._timer is not None:
                self._timer.cancel()
            due = self._before_s >= max(TOLD_AFTER_S, 1.5 * self._told_s)
            if due:
                self._told_s = self._before_s
            took_s = self._before_s
        if due:
            self._tell(
                Noticed(f"compiled (torch.compile) for {took_s:.0f} s; workers that train with it wait meanwhile")
            )

    def _takes_long(self) -> None:
        with self._lock:
            if self._began is None:
                return
            so_far_s = self._before_s + time.monotonic() - self._began
        self._tell(
            Noticed(f"compiles (torch.compile), for {so_far_s:.0f} s so far; workers that train with it wait meanwhile")
        )


class Compiled:
    """The artefacts of this worker's compilations, for joining workers. For the training thread."""

    def __init__(self, key: str, tell: Callable[[Noticed], None]) -> None:
        """key: the secret that the job's workers share; "": none."""
        self._key = hashlib.blake2b(key.encode(), digest_size=32, person=_PURPOSE).digest() if key else None
        self.compilations = Compilations(tell)

    def offer(self) -> dict[str, Any]:
        """Return the addition to the header for a joining worker: empty if no code was compiled, or too much."""
        save = getattr(torch.compiler, "save_cache_artifacts", None)
        if self._key is None or save is None or "torch._inductor" not in sys.modules:
            return {}
        try:
            saved = save()
        except Exception:  # an error of the library's caches must not end the training
            log.exception("the artefacts of torch.compile could not be saved: newcomers compile themselves")
            return {}
        if saved is None:
            return {}
        data = saved[0]
        if len(data) > MOST_BYTES:
            log.warning("the artefacts of torch.compile have %d MiB: newcomers compile themselves", len(data) >> 20)
            return {}
        return {"compiled": {"torch": str(torch.__version__), "data": data, "code": self._code(data, self._key)}}

    def take(self, header: dict[str, Any]) -> bool:
        """Put artefacts from a state's header into torch's caches, and remove them from the header.

        Returns whether they were used.
        """
        offered = header.pop("compiled", None)
        load = getattr(torch.compiler, "load_cache_artifacts", None)
        if not isinstance(offered, dict) or self._key is None or load is None:
            return False
        if offered.get("torch") != str(torch.__version__):
            return False
        data, code = offered.get("data"), offered.get("code")
        if not isinstance(data, bytes) or not isinstance(code, bytes) or len(data) > MOST_BYTES:
            return False
        if not hmac.compare_digest(code, self._code(data, self._key)):
            log.warning("artefacts of torch.compile have come that no worker of this job has made: they are not used")
            return False
        try:
            return load(data) is not None
        except Exception:  # as above: an error of the caches must not end the training
            log.exception("the artefacts of torch.compile could not be used: this worker compiles itself")
            return False

    @staticmethod
    def _code(data: bytes, key: bytes) -> bytes:
        return hashlib.blake2b(data, key=key, digest_size=32).digest()
