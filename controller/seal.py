"""Records that decide as whom a job runs bear a code that the store cannot make (design: trust). Pure; files: `sealing`.

Theory of operation
-------------------
A store that several controllers share is on other machines, and may have other writers than controllers: whoever holds a
certificate of it, or breaks into one of its members. A record of a submission names the account and the command of a job. So each
such record is *sealed*: a message authentication code (HMAC-SHA256) of its key and its value stands before the value. The secret
lies beside the controllers' own keys, and never in the store. A record whose seal is missing or wrong counts as absent: nothing
starts from it, and the controller tells its operators.

A seal does not show that a record is the latest: an earlier record of the same key passes. Such a record was submitted by its
owner, with that command.
"""

from __future__ import annotations

import hashlib
import hmac

from ..protocol.errors import OperatorError
from ..runtime.keys import SECRET_BYTES
from .jobs.archive import PREFIX as ARCHIVE
from .records import JOBS, POLICY_KEY, job_of_state
from .snapshots import PREFIX as SNAPSHOTS

SEAL_KEY = "/seal"  # bears a seal itself, and says that this store has been sealed with that secret
MARK = b"\xc1seal\x01"  # MessagePack uses 0xc1 for nothing: no value without a seal begins with it
_NAME_BYTES = 8
HEAD_BYTES = len(MARK) + _NAME_BYTES + hashlib.sha256().digest_size  # before the value
MISSING = "it has no seal"
OTHER = "its seal was made with another secret"
WRONG = "its seal does not fit its contents"


def is_sealed(key: str) -> bool:
    """Do records under `key` decide as whom something runs: submissions, jobs in the archive, the policy set at run time?"""
    if key.startswith(JOBS):
        return job_of_state(key) is None
    return key in (POLICY_KEY, SEAL_KEY) or (key.startswith(ARCHIVE) and not key.startswith(SNAPSHOTS))


class BrokenSeal(OperatorError):
    """A record is not as a controller has written it."""


class Seal:
    """Seals records, and opens them, with one secret."""

    def __init__(self, secret: bytes, where: str = "") -> None:
        """`where` the secret lies, for people. Raises OperatorError if it has another length."""
        if len(secret) != SECRET_BYTES:
            raise OperatorError(f"{where}: is no secret for seals: {len(secret)} bytes, not {SECRET_BYTES}")
        self.where = where
        self._secret = secret
        self._name = hashlib.blake2b(secret, digest_size=_NAME_BYTES, person=b"elasticctl seal").digest()

    def __repr__(self) -> str:  # never the secret
        return f"Seal({self._name.hex()})"

    def close(self, key: str, value: bytes) -> bytes:
        """`value` as it is stored under `key`."""
        return MARK + self._name + self._code(key, value) + value

    def open(self, key: str, stored: bytes) -> bytes:
        """The value under `key`. Raises BrokenSeal."""
        if not stored.startswith(MARK):
            raise BrokenSeal(MISSING)
        if stored[len(MARK) : len(MARK) + _NAME_BYTES] != self._name:
            raise BrokenSeal(OTHER)
        value = stored[HEAD_BYTES:]
        if not hmac.compare_digest(stored[len(MARK) + _NAME_BYTES : HEAD_BYTES], self._code(key, value)):
            raise BrokenSeal(WRONG)
        return value

    def _code(self, key: str, value: bytes) -> bytes:
        name = key.encode()
        return hmac.digest(self._secret, len(name).to_bytes(4, "big") + name + value, "sha256")
