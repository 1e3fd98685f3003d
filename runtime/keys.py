"""CURVE keys: the controller's directory of known principals, and the key files of users, operators and servers.

Theory of operation
-------------------
A CURVE key pair authenticates the peer of a connection. The controller, each server, each user and each operator have one.
The controller's directory (mode 0700) holds two files: the controller's own pair, and the list of known principals by public key.
Role, name and Unix account of a principal are taken from that list alone. A key file repeats them for its reader, but they are
never trusted. A revoked key stays in the list with its date, so that the name is still listed, and can be given a new key.

A running controller checks the list's file for changes once a second. Files are replaced atomically, so that no reader sees a
half-written file.
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
SEAL_FILE = "store.seal"  # the secret with which controllers authenticate their records in a shared store
JOBS_FILE = "jobs.secret"  # in the controller's state directory
HIDDEN_FILE = "jobs.hidden"  # beside it: the shared store hides the secret of the jobs' keys
SECRET_BYTES = 32  # of either file
Z85_BYTES = 40


@dataclass(frozen=True)
class Pair:
    """A CURVE key pair, in Z85."""

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> Pair:
        return cls(*zmq.curve_keypair())

    @classmethod
    def of(cls, secret: bytes) -> Pair:
        """Return the pair with this secret key. Raises ValueError if it is not a Z85 key."""
        return cls(zmq.curve_public(_checked(secret)), secret)

    def __repr__(self) -> str:  # without the secret, as a repr may be logged
        return f"Pair({self.public.decode()})"


# -- key files


class _KeyDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    principal: str
    public: str
    secret: str
    controller_public: str
    controller: str | None = None


@dataclass(frozen=True)
class KeyFile:
    """Key file of a user, an operator or a server: its principal, its pair, and the controller's public key."""

    role: Role
    name: str
    pair: Pair
    controller_public: bytes
    controller: str | None = None  # the controller's address for this role

    @classmethod
    def read(cls, path: Path, kind: type[ElasticError] = OperatorError) -> KeyFile:
        """Read a key file. Raises `kind` if the file is unusable, or readable by others."""
        try:
            text = read_secret(path)
        except OperatorError as error:
            raise kind(str(error)) from None
        return cls.parsed(text, str(path), kind)

    @classmethod
    def parsed(cls, text: bytes, source: str, kind: type[ElasticError] = OperatorError) -> KeyFile:
        """Parse the content of a key file. Raises `kind`, naming `source`."""
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
    """One entry of the list: a key that was issued."""

    principal: str
    public: str
    account: str = ""
    added_s: float = 0.0  # Unix time
    revoked_s: float | None = None


class _List(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = 1
    known: tuple[Known, ...] = ()


class Principals:
    """The known principals at one moment, by key, name and Unix user."""

    def __init__(self, known: tuple[Known, ...] = (), closed: bool = False) -> None:
        """closed: a Unix user of this machine is known only by an entry of the list. Raises UserError if an entry has no valid
        name."""
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
        """Return the principal with this public key; None if the key is unknown or revoked."""
        return self._by_key.get(public)

    def named(self, principal: str) -> Known | None:
        """Return the newest key of a principal such as "user:alice", revoked or not."""
        return self._named.get(principal)

    def of_uid(self, uid: int) -> Principal | None:
        """Return the principal of a Unix user of this machine; None for an account without a name, or with another's name.

        The list takes precedence: where `user:alice` has a key and another account, or was revoked, the Unix user alice is not
        that principal. In a closed list an account has to be listed, so that service accounts cannot read users' jobs.
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
        """Return whether the list has this account as an operator's. Without the operator's key, its Unix user is a user."""
        listed = self._named.get(f"{Role.OPERATOR.value}:{name}")
        return listed is not None and listed.revoked_s is None and listed.account == account


class KeyDirectory:
    """The controller's key directory: the daemon reads it, `elasticctl keys` writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    @property
    def exists(self) -> bool:
        return (self.path / CONTROLLER_FILE).exists()

    def pair(self) -> Pair:
        """Return the controller's own pair. Raises OperatorError if it is missing, or readable by others."""
        self._check()
        path = self.path / CONTROLLER_FILE
        try:
            return Pair.of(self._read(path).strip())
        except ValueError as error:
            raise OperatorError(f"{path}: {error}") from None

    def principals(self) -> Principals:
        """Read the list of known principals. Raises OperatorError."""
        self._check()
        self._seen = self._stamp()
        path = self.path / KNOWN_FILE
        try:
            return Principals(msgspec.json.decode(self._read(path), type=_List).known, closed=True)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UserError) as error:
            raise OperatorError(f"{path}: is not a list of principals: {error}") from None

    def changed(self) -> bool:
        """Return whether the list was written since this object last read it."""
        return self._stamp() != self._seen

    def make(self) -> Pair:
        """Create a new pair, and an empty list if there is none. Raises OperatorError if a pair exists already."""
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
        """Issue a new key into the file `out`, which must not exist yet. Raises UserError, OperatorError."""
        role, name = parse(principal)
        if role is Role.CONTROLLER:
            raise UserError("the controller has its key by `elasticctl keys init`")
        owns = role in (Role.USER, Role.OPERATOR)
        if account and not owns:
            raise UserError(f"a {role.value} has no account: jobs run as their owners")
        account = account or (name if owns else "")
        with self._locked():
            now = self.principals()
            before = now.named(principal)
            if before is not None and before.revoked_s is None:
                raise UserError(f"{principal} has a key already: `elasticctl keys revoke {principal}` first")
            if owns:
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
        """Check that a name has one account. Jobs belong to a name: `user:alice` and `operator:alice` are one person.

        Raises UserError if the name's other role has another account.
        """
        for other in (Role.USER, Role.OPERATOR):
            known = now.named(f"{other.value}:{name}")
            if known is None or other is role or known.account == account:
                continue
            raise UserError(
                f"{role.value}:{name} would own the jobs of {known.principal}, whose account is {known.account}: "
                "choose another name, or the same account"
            )

    def revoke(self, principal: str) -> None:
        """Revoke the key of a principal. Raises UserError if the principal has no valid key."""
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
        """Raise OperatorError unless the directory is closed to others, and others could not have created it."""
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
        """Hold the directory's lock: one process changes the list at a time."""
        self._check()
        held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)


# -- the keys of jobs


class JobKeys:
    """Keys that the workers of one job share, derived from one secret and the job's identity; none is stored.

    The secret is in the controller's state directory, or in the store that several controllers share. If it is lost, new workers
    cannot join running jobs.
    """

    def __init__(self, secret: bytes, where: str = "") -> None:
        """where: source of the secret, for error messages. Raises OperatorError if the secret has not SECRET_BYTES bytes."""
        if len(secret) != SECRET_BYTES:
            text = f"is not the secret of this cluster: {len(secret)} bytes, not {SECRET_BYTES}"
            raise OperatorError(f"{where}: {text}")
        self.secret = secret

    @classmethod
    def kept_in(cls, state: Path) -> JobKeys:
        """Return the keys of a state directory, creating its secret if it is missing. Raises OperatorError."""
        path = state / JOBS_FILE
        if not path.exists():
            write_secret(path, secrets.token_bytes(SECRET_BYTES))
        return cls(read_secret(path), str(path))

    def of(self, job: str, uid: str) -> str:
        """Return the secret key (Z85) that the workers of a job share."""
        digest = hashlib.blake2b(f"{job}\0{uid}".encode(), key=self.secret, digest_size=32, person=b"elasticctl job")
        return z85.encode(digest.digest()).decode()


def _checked(key: bytes) -> bytes:
    """Return `key` if it is a Z85 key. Raises ValueError."""
    if len(key) != Z85_BYTES:
        raise ValueError(f"a key has {Z85_BYTES} characters (Z85), this one {len(key)}")
    try:
        z85.decode(key)
    except (KeyError, ValueError, struct.error):
        raise ValueError("a key has other characters (Z85)") from None
    return key
