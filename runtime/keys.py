"""Keys: who is known to a cluster, in one directory of the controller, and the files that its people and servers are given.

Theory of operation
-------------------
A CURVE pair proves who is at the other end of a connection. The controller has one, and so has each server, user and operator.
The controller's directory (mode 0700) holds two files: its own pair, and the list of those that it knows, by their public keys.
What somebody is (role, name, Unix account) stands in that list and nowhere else: a key file says it too, for people, and nobody
believes it. A revoked key stays in the list with its date, so that the name can be seen, and given a new key.

A running controller looks at the list's file once a second. Files are written whole, so that it never reads half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import secrets
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml
import zmq
import zmq.utils.z85 as z85

from ..protocol.errors import ElasticError, OperatorError, UserError
from ..protocol.principals import LOCAL_OPERATOR, Principal, Role, parse
from . import config
from .directories import OTHERS_READ_OR_WRITE, check_way, read_secret, write_secret

CONTROLLER_FILE = "controller.key"
KNOWN_FILE = "known.json"
SEAL_FILE = "store.seal"  # the secret by which controllers know their own records in a store that they share
JOBS_FILE = "jobs.secret"  # in the controller's state directory
SECRET_BYTES = 32  # of either file
Z85_BYTES = 40


@dataclass(frozen=True)
class Pair:
    """A CURVE key pair, Z85."""

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> Pair:
        return cls(*zmq.curve_keypair())

    @classmethod
    def of(cls, secret: bytes) -> Pair:
        """The pair with this secret key. Raises ValueError if it is none."""
        return cls(zmq.curve_public(_checked(secret)), secret)

    def __repr__(self) -> str:  # never the secret, wherever this is shown
        return f"Pair({self.public.decode()})"


# -- the files that are given away


class _KeyDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    principal: str
    public: str
    secret: str
    controller_public: str
    controller: str | None = None


@dataclass(frozen=True)
class KeyFile:
    """What a user, an operator or a server holds: whom it stands for, its pair, and how to know the controller."""

    role: Role
    name: str
    pair: Pair
    controller_public: bytes
    controller: str | None = None  # the controller's address for this role

    @classmethod
    def read(cls, path: Path, kind: type[ElasticError] = OperatorError) -> KeyFile:
        """Raises `kind` if the file cannot be used, or if others may read it."""
        try:
            text = read_secret(path)
        except OperatorError as error:
            raise kind(str(error)) from None
        return cls.parsed(text, str(path), kind)

    @classmethod
    def parsed(cls, text: bytes, source: str, kind: type[ElasticError] = OperatorError) -> KeyFile:
        """The content of a key file. Raises `kind`, naming `source`."""
        try:
            document = config.parse_yaml(text.decode(), source)
        except (ElasticError, UnicodeDecodeError):
            raise kind(f"{source}: is not a key file") from None
        found = config.convert(document, _KeyDocument, source, kind)
        try:
            role, name = parse(found.principal)
            pair = Pair.of(found.secret.encode())
            controller = _checked(found.controller_public.encode())
        except (ElasticError, ValueError) as error:
            raise kind(f"{source}: {error}") from None
        if pair.public != found.public.encode():
            raise kind(f"{source}: the public key is not that of the secret key")
        return cls(role, name, pair, controller, found.controller)

    def text(self) -> bytes:
        document = _KeyDocument(
            principal=f"{self.role.value}:{self.name}",
            public=self.pair.public.decode(),
            secret=self.pair.secret.decode(),
            controller_public=self.controller_public.decode(),
            controller=self.controller,
        )
        head = "# Whoever has this file is taken for its principal. Only its owner may read it (mode 0600).\n"
        return (head + yaml.safe_dump(msgspec.to_builtins(document), sort_keys=False)).encode()


# -- the controller's directory


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line of the list: a key that was given out."""

    principal: str
    public: str
    account: str = ""
    added_s: float = 0.0  # Unix time
    revoked_s: float | None = None


class _List(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = 1
    known: tuple[Known, ...] = ()


class Principals:
    """Who is known, at one moment."""

    def __init__(self, known: tuple[Known, ...] = (), closed: bool = False) -> None:
        """`closed`: a Unix user of this machine is known only by a line of the list. Raises UserError if a line has no name."""
        self.known = known
        self._closed = closed
        self._by_key: dict[str, Principal] = {}
        self._named: dict[str, Known] = {}  # the newest key of each
        self._by_uid: dict[int, Principal | None] = {}
        for each in known:
            role, name = parse(each.principal)
            self._named[each.principal] = each
            if each.revoked_s is None:
                self._by_key[each.public] = Principal(role=role, name=name, account=each.account)

    def of_key(self, public: str) -> Principal | None:
        """Whose key this is. None: it is unknown, or revoked."""
        return self._by_key.get(public)

    def named(self, principal: str) -> Known | None:
        """The newest key of "user:alice", revoked or not."""
        return self._named.get(principal)

    def of_uid(self, uid: int) -> Principal | None:
        """Who a Unix user of this machine is. None: one without a name, or whose name means somebody else.

        The list goes first: where `user:alice` has a key and another account, or was revoked, the Unix user alice is not she.
        In a closed list an account has to be named: those of services do not look at people's jobs.
        """
        if uid not in self._by_uid:
            self._by_uid[uid] = self._find_uid(uid)
        return self._by_uid[uid]

    def _find_uid(self, uid: int) -> Principal | None:
        if uid == os.getuid():
            return LOCAL_OPERATOR
        try:
            account = pwd.getpwuid(uid).pw_name
            role, name = parse(f"{Role.OPERATOR.value if uid == 0 else Role.USER.value}:{account}")
        except (KeyError, ElasticError):
            return None
        listed = self._named.get(f"{role.value}:{name}")
        if listed is not None and (listed.revoked_s is not None or listed.account != account):
            return None
        if listed is None and self._closed and uid != 0 and not self._operates(name, account):
            return None
        return Principal(role=role, name=name, account=account)

    def _operates(self, name: str, account: str) -> bool:
        """Is this account in the list as that of an operator? Without the key its user is a user."""
        listed = self._named.get(f"{Role.OPERATOR.value}:{name}")
        return listed is not None and listed.revoked_s is None and listed.account == account


class KeyDirectory:
    """The controller's keys. The daemon reads, `elasticctl keys` writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    @property
    def exists(self) -> bool:
        return (self.path / CONTROLLER_FILE).exists()

    def pair(self) -> Pair:
        """The controller's own. Raises OperatorError."""
        self._check()
        path = self.path / CONTROLLER_FILE
        try:
            return Pair.of(self._read(path).strip())
        except ValueError as error:
            raise OperatorError(f"{path}: {error}") from None

    def principals(self) -> Principals:
        """Who is known now. Raises OperatorError."""
        self._check()
        self._seen = self._stamp()
        path = self.path / KNOWN_FILE
        try:
            return Principals(msgspec.json.decode(self._read(path), type=_List).known, closed=True)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UserError) as error:
            raise OperatorError(f"{path}: is not a list of principals: {error}") from None

    def changed(self) -> bool:
        """Has the list been written since it was read here?"""
        return self._stamp() != self._seen

    def make(self) -> Pair:
        """A new pair and an empty list. Raises OperatorError if there are keys already."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(f"{self.path}: cannot be made: {error.strerror}") from None
        self._check()
        with self._locked():
            pair = Pair.new()
            if not (self.path / KNOWN_FILE).exists():
                self._write(())
            write_secret(self.path / CONTROLLER_FILE, pair.secret + b"\n", replace=False)
            if not (self.path / SEAL_FILE).exists():
                write_secret(self.path / SEAL_FILE, secrets.token_bytes(SECRET_BYTES))
        return pair

    def add(self, principal: str, account: str, out: Path, controller: str | None = None) -> KeyFile:
        """Give out a new key: into the file `out`, which must not be there yet. Raises UserError, OperatorError."""
        role, name = parse(principal)
        if role is Role.CONTROLLER:
            raise UserError("the controller has its key by `elasticctl keys init`")
        if role is not Role.SERVER and not account:
            account = name
        if role is Role.SERVER and account:
            raise UserError("a server has no account: jobs run as their owners")
        with self._locked():
            now = self.principals()
            before = now.named(principal)
            if before is not None and before.revoked_s is None:
                raise UserError(f"{principal} has a key already: `elasticctl keys revoke {principal}` first")
            self._check_owner(now, role, name, account)
            given = KeyFile(role, name, Pair.new(), self.pair().public, controller)
            write_secret(out, given.text(), replace=False)
            line = Known(
                principal=principal, public=given.pair.public.decode(), account=account, added_s=float(int(time.time()))
            )
            try:
                self._write((*now.known, line))
            except ElasticError:
                with contextlib.suppress(OSError):
                    out.unlink()
                raise
        return given

    @staticmethod
    def _check_owner(now: Principals, role: Role, name: str, account: str) -> None:
        """Jobs belong to a name: `user:alice` and `operator:alice` are one person. Raises UserError if they cannot be."""
        for other in (Role.USER, Role.OPERATOR):
            known = now.named(f"{other.value}:{name}")
            if known is None or role is Role.SERVER or other is role or known.account == account:
                continue
            raise UserError(
                f"{role.value}:{name} would own the jobs of {known.principal}, whose account is {known.account}: "
                "choose another name, or the same account"
            )

    def revoke(self, principal: str) -> None:
        """No key of this principal counts any more. Raises UserError if it has none that does."""
        parse(principal)
        with self._locked():
            now = self.principals()
            found = now.named(principal)
            if found is None:
                raise UserError(f"{principal} has no key here; `elasticctl keys list` tells who has")
            if found.revoked_s is not None:
                raise UserError(f"{principal} is revoked already")
            when = float(int(time.time()))
            self._write(
                tuple(
                    msgspec.structs.replace(each, revoked_s=when)
                    if each.principal == principal and each.revoked_s is None
                    else each
                    for each in now.known
                )
            )

    def _check(self) -> None:
        """Raises OperatorError unless the directory is closed, and nobody else could have put it there."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise OperatorError(f"{self.path}: there are no keys: `elasticctl keys init` makes them") from None
        except OSError as error:
            raise OperatorError(f"{self.path}: {error.strerror}") from None
        check_way(self.path)
        if os.getuid() != 0 and found.st_uid not in (0, os.getuid()):
            raise OperatorError(f"{self.path}: belongs to user {found.st_uid}, not to user {os.getuid()} or root")
        if found.st_mode & OTHERS_READ_OR_WRITE:
            raise OperatorError(f"{self.path}: is open to others; `chmod 700` it")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = (self.path / KNOWN_FILE).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self, path: Path) -> bytes:
        return read_secret(path, self.path.stat().st_uid if os.getuid() == 0 else None)

    def _write(self, known: tuple[Known, ...]) -> None:
        write_secret(self.path / KNOWN_FILE, msgspec.json.format(msgspec.json.encode(_List(known=known))) + b"\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time."""
        self._check()
        held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)


# -- the keys of jobs


class JobKeys:
    """The keys that the workers of a job share among each other: they follow from one secret and the job, and nothing is stored.

    The secret lies in the controller's state directory, or in the store that several controllers share. Should it be lost,
    running jobs cannot be joined by new workers.
    """

    def __init__(self, secret: bytes, where: str = "") -> None:
        """`where` it comes from, for people. Raises OperatorError if it is none."""
        if len(secret) != SECRET_BYTES:
            text = f"is not the secret of this cluster: {len(secret)} bytes, not {SECRET_BYTES}"
            raise OperatorError(f"{where}: {text}")
        self.secret = secret

    @classmethod
    def kept_in(cls, state: Path) -> JobKeys:
        """Those of a state directory. Makes the secret if it is missing. Raises OperatorError."""
        path = state / JOBS_FILE
        if not path.exists():
            write_secret(path, secrets.token_bytes(SECRET_BYTES))
        return cls(read_secret(path), str(path))

    def of(self, job: str, uid: str) -> str:
        """The secret key (Z85) of a job's workers."""
        digest = hashlib.blake2b(f"{job}\0{uid}".encode(), key=self.secret, digest_size=32, person=b"elasticctl job")
        return z85.encode(digest.digest()).decode()


def _checked(key: bytes) -> bytes:
    """A Z85 key. Raises ValueError."""
    if len(key) != Z85_BYTES:
        raise ValueError(f"a key has {Z85_BYTES} characters (Z85), this one {len(key)}")
    try:
        z85.decode(key)
    except (KeyError, ValueError, struct.error):
        raise ValueError("a key has other characters (Z85)") from None
    return key
