"""Seals of the records that decide under which account a job runs; the store cannot forge them (design: trust). Pure.

The files of the secret are the subject of `sealing`.

Theory of operation
-------------------
A store that several controllers share is on other machines, and may have other writers: the holder of a client certificate, or an
intruder on one of its members. A record of a submission names the account and the command of a job. So each such record is
*sealed*: a message authentication code (HMAC-SHA256) of its key and its value precedes the value. The secret is kept beside the
controllers' own keys, and never in the store. A record with a missing or wrong seal counts as absent: no job starts from it, and
the controller reports it to its operators.

A seal does not show that a record is the latest: an earlier record of the same key passes. Such a record was submitted by its
owner, with that command.

The secret of the jobs' keys is also *hidden* from readers of the store (`hide`): it is combined by XOR with a pad, an HMAC-SHA256
of a random nonce under a key derived from the secret of the seals.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from ..protocol.errors import OperatorError
from ..runtime.keys import SECRET_BYTES
from .election.records import JOB_KEYS_KEY
from .jobs.archive import PREFIX as ARCHIVE
from .records import JOBS, POLICY_KEY, job_of_state
from .snapshots import PREFIX as SNAPSHOTS

SEAL_KEY = "/seal"  # sealed marker: the store has been sealed with this secret
MARK = b"\xc1seal\x01"  # MessagePack never uses 0xc1, so no unsealed value begins with it
_NAME_BYTES = 8
_NONCE_BYTES = 16
HEAD_BYTES = len(MARK) + _NAME_BYTES + hashlib.sha256().digest_size  # bytes of a seal before the value
MISSING = "it has no seal"
OTHER = "its seal was made with another secret"
WRONG = "its seal does not fit its contents"


def is_sealed(key: str) -> bool:
    """Return whether records under `key` are sealed: submissions, archived jobs, the policy set at run time, the marker."""
    if key.startswith(JOBS):
        return job_of_state(key) is None
    return key in (POLICY_KEY, SEAL_KEY) or (key.startswith(ARCHIVE) and not key.startswith(SNAPSHOTS))


def is_hidden(key: str) -> bool:
    """Return whether readers of the store must not learn the value under `key`: the secret of the jobs' keys."""
    return key == JOB_KEYS_KEY


class BrokenSeal(OperatorError):
    """The seal of a record is missing or wrong."""


class Seal:
    """Sealer and opener of records with one secret."""

    def __init__(self, secret: bytes, where: str = "") -> None:
        """`where`: the secret's file, for people. Raises OperatorError if the secret is not SECRET_BYTES long."""
        if len(secret) != SECRET_BYTES:
            raise OperatorError(f"{where}: is no secret for seals: {len(secret)} bytes, not {SECRET_BYTES}")
        self.where = where
        self._secret = secret
        self._name = hashlib.blake2b(secret, digest_size=_NAME_BYTES, person=b"elasticctl seal").digest()

    def __repr__(self) -> str:  # never the secret
        return f"Seal({self._name.hex()})"

    def close(self, key: str, value: bytes) -> bytes:
        """Return the sealed form of `value` for `key`."""
        return MARK + self._name + self._code(key, value) + value

    def open(self, key: str, stored: bytes) -> bytes:
        """Return the value of a sealed record. Raises BrokenSeal if the seal is missing or does not fit."""
        if not stored.startswith(MARK):
            raise BrokenSeal(MISSING)
        if stored[len(MARK) : len(MARK) + _NAME_BYTES] != self._name:
            raise BrokenSeal(OTHER)
        value = stored[HEAD_BYTES:]
        if not hmac.compare_digest(stored[len(MARK) + _NAME_BYTES : HEAD_BYTES], self._code(key, value)):
            raise BrokenSeal(WRONG)
        return value

    def hide(self, key: str, secret: bytes) -> bytes:
        """Return a sealed record for `key` from which readers of the store do not learn `secret`, SECRET_BYTES long."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return self.close(key, nonce + self._masked(nonce, secret))

    def reveal(self, key: str, stored: bytes) -> bytes:
        """Return the secret that `hide` has hidden. Raises BrokenSeal if the seal is missing or does not fit."""
        value = self.open(key, stored)
        return self._masked(value[:_NONCE_BYTES], value[_NONCE_BYTES:])

    def _masked(self, nonce: bytes, value: bytes) -> bytes:
        key = hmac.digest(self._secret, b"elasticctl hidden secrets", "sha256")
        pad = hmac.digest(key, nonce, "sha256")
        return bytes(one ^ other for one, other in zip(value, pad, strict=True))

    def _code(self, key: str, value: bytes) -> bytes:
        name = key.encode()
        return hmac.digest(self._secret, len(name).to_bytes(4, "big") + name + value, "sha256")
