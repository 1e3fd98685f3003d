"""Connection to an etcd cluster: several endpoints, TLS, a password, time limits of calls, and outcomes of errors.

Theory of operation
-------------------
One endpoint is used until a call to it fails; then the next endpoint is used. A read is repeated at the next endpoint
at once, within its time limit. A commit is not repeated: its outcome is unknown, unless etcd reports that nothing was
done.

Each call requires that the member has a leader (`hasleader`): a member that is cut off from the others then refuses at
once, instead of not answering. A token that has expired, or that a member lost at its restart, is replaced by a new
one.

A member is used only after it has refused a call without credentials (`Endpoint.check_closed`).
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ...protocol.errors import OperatorError
from . import etcd_api
from .interface import Compacted, StoreUnavailable

CALL_TIMEOUT_S = 0.5  # limit of one call; the controller's loop is blocked meanwhile
TOKEN_TIMEOUT_S = 2.0  # least limit for fetching a token: password hashes are slow to check by design
HAS_LEADER = ("hasleader", "true")
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # limit of one attempt, TLS handshake included
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),  # unlimited: a page is limited by its number of records, not by bytes
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 6000),  # etcd refuses more than one keepalive ping in 5 s
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class Access:
    """Addresses of an etcd cluster, and the credentials for it."""

    endpoints: tuple[str, ...]  # addresses HOST:PORT of the members
    ca: Path | None = None  # certificates of the authorities that sign the members' certificates; None: no TLS
    cert: Path | None = None  # certificate of this client, if the members require one
    key: Path | None = None
    user: str = ""
    password: str = ""
    timeout_s: float = CALL_TIMEOUT_S
    insecure: bool = False  # use a member even if it answers without credentials

    def __repr__(self) -> str:  # the password must not appear in logs
        return f"Access({', '.join(self.endpoints)})"


class OpenStore(OperatorError):
    """A member of etcd answers without credentials.

    Any host that reaches the member could control the cluster, and all accounts under which jobs run.
    """

    def __init__(self, address: str) -> None:
        super().__init__(
            f"etcd at {address} answers without authentication, so whoever reaches it could run jobs as anybody: give it TLS "
            "with --client-cert-auth, or users by `etcdctl auth enable` (docs/operators.md, Several controllers); or say "
            "`insecure: true` in the section etcd, on a machine that nobody else uses"
        )


class Failure(enum.Enum):
    """Outcome of a failed call."""

    NOTHING_DONE = "refused by a member that cannot do it now; another one may"
    TOKEN = "refused, as the token is not known"
    REFUSED = "refused, as any member would"
    UNKNOWN = "whether it was done is not known"


_NOTHING_DONE = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: not capable",
    "failed to connect to all addresses",  # an error of gRPC: the call was not sent
)
_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")
_NO_SPACE = "etcdserver: mvcc: database space exceeded"
_COMPACTED = "etcdserver: mvcc: required revision has been compacted"
_REFUSED = (
    "INVALID_ARGUMENT",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "UNIMPLEMENTED",
    "NOT_FOUND",
    "OUT_OF_RANGE",
)


def judge(error: Any) -> Failure:
    """Return the outcome that `error`, a grpc.RpcError, implies."""
    name, text = error.code().name, error.details() or ""
    if text.startswith(_NOTHING_DONE):
        return Failure.NOTHING_DONE
    if name == "UNAUTHENTICATED" or text.startswith(_TOKEN):
        return Failure.TOKEN
    return Failure.REFUSED if name in _REFUSED else Failure.UNKNOWN


class Endpoint:
    """One member of the etcd cluster: its channel, the stubs of etcd3, and the token that the member has issued."""

    def __init__(self, address: str, access: Access) -> None:
        """Prepare a channel, which connects at the first call.

        Raises OperatorError if a file of `access` cannot be used.
        """
        etcd3 = etcd_api.load()
        host, _, port = address.rpartition(":")
        files = {"ca_cert": access.ca, "cert_cert": access.cert, "cert_key": access.key}
        try:
            self._client: Any = etcd3.client(
                host=host,
                port=int(port),
                timeout=access.timeout_s,
                grpc_options=list(OPTIONS),
                **{name: str(path) for name, path in files.items() if path is not None},
            )
        except OSError as error:
            raise OperatorError(f"{error.filename}: {error.strerror}") from None
        rpc = etcd3.etcdrpc
        self.address = address
        self._rpc, self._access = rpc, access
        channel = self._client.channel
        self.kv, self.lease, self.watch = self._client.kvstub, self._client.leasestub, rpc.WatchStub(channel)
        self._auth = rpc.AuthStub(channel)
        self._token = ""
        self._closed = access.insecure  # the member refuses calls without credentials, or need not (`insecure`)
        self._lock = threading.Lock()

    def check_closed(self, timeout_s: float) -> None:
        """Check, once and before any other call, that the member refuses calls without credentials.

        Raises OpenStore if the member answers such a call, and grpc.RpcError if the check cannot be completed. The
        member is first read from with the credentials, which shows that it can be reached. So if a connection without a
        certificate then fails, the member has refused it.
        """
        if self._closed:
            return
        timeout_s = max(timeout_s, TOKEN_TIMEOUT_S)
        asked = self._rpc.RangeRequest(key=b"\0", count_only=True)
        try:
            self.kv.Range(asked, timeout=timeout_s, metadata=self.metadata(timeout_s))
        except grpc_error() as error:
            if error.code().name != "PERMISSION_DENIED":  # the user is authenticated, but may not read this key
                raise
        anonymous = Endpoint(
            self.address, replace(self._access, cert=None, key=None, user="", password="", insecure=True)
        )
        try:
            anonymous.kv.Range(asked, timeout=timeout_s, metadata=(HAS_LEADER,))
        except grpc_error() as error:
            refused = "user name is empty" in (error.details() or "")
            if not refused and (self._access.cert is None or error.code().name != "UNAVAILABLE"):
                raise
            self._closed = True
        else:
            raise OpenStore(self.address)
        finally:
            anonymous.close()

    def metadata(self, timeout_s: float) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call; a token is fetched if one is needed. Raises grpc.RpcError."""
        if not self._access.user:
            return (HAS_LEADER,)
        with self._lock:
            if not self._token:
                asked = self._rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
                timeout_s = max(timeout_s, TOKEN_TIMEOUT_S)
                self._token = self._auth.Authenticate(asked, timeout=timeout_s, metadata=(HAS_LEADER,)).token
            return (HAS_LEADER, ("token", self._token))

    def forget_token(self) -> None:
        """Drop a token that the member does not accept, so that the next call fetches a new one."""
        with self._lock:
            self._token = ""

    def keep_alive(self, request: Any, timeout: float, metadata: Any) -> Any:
        """Renew a lease once, through a stream of one request: etcd has no unary call for it."""
        return next(self.lease.LeaseKeepAlive(iter([request]), timeout=timeout, metadata=metadata))

    def close(self) -> None:
        self._client.close()


def grpc_error() -> type[Any]:
    """Return grpc.RpcError, which calls raise. gRPC is imported here, so that only users of etcd load it."""
    import grpc

    return grpc.RpcError  # type: ignore[no-any-return]


Method: TypeAlias = Callable[[Endpoint], Any]  # returns the gRPC method to call on an endpoint's stubs


class Connection:
    """Connection to the etcd cluster, with each call sent to a member that answers. For several threads."""

    def __init__(self, access: Access) -> None:
        """Prepare the endpoints, which connect at the first call.

        Raises OperatorError if etcd3 is missing or a file of `access` cannot be used.
        """
        self.rpc: Any = etcd_api.load().etcdrpc
        self.error: type[Any] = grpc_error()
        self.access = access
        self._endpoints = [Endpoint(address, access) for address in access.endpoints]
        self._current = 0

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint in use."""
        return self._endpoints[self._current]

    def leave(self, endpoint: Endpoint) -> None:
        """Use the next endpoint from now on, because `endpoint` has failed."""
        if endpoint is self.endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def read(self, method: Method, request: Any) -> Any:
        """Return the answer to a request that may be repeated. Raises StoreUnavailable, Compacted."""
        return self._call(method, request, repeat=True)

    def write(self, method: Method, request: Any) -> Any:
        """Return the answer to a request that must not be repeated.

        Raises Compacted, or StoreUnavailable, of which `outcome_unknown` is false if the request certainly did nothing.
        """
        return self._call(method, request, repeat=False)

    def _call(self, method: Method, request: Any, repeat: bool) -> Any:
        until_s = time.monotonic() + self.access.timeout_s
        untried, token_renewed = len(self._endpoints), False
        while True:
            endpoint, untried = self.endpoint, untried - 1
            left_s = max(0.01, until_s - time.monotonic())
            share_s = (
                left_s / 2 if repeat and untried > 0 else left_s
            )  # a stopped member never answers: the rest of the time is for the next member
            sent = False
            try:
                endpoint.check_closed(share_s)
                metadata = endpoint.metadata(share_s)
                sent = True
                return method(endpoint)(request, timeout=share_s, metadata=metadata)
            except self.error as error:
                failure = judge(error)
                if failure is Failure.TOKEN and not token_renewed:
                    token_renewed, untried = True, untried + 1
                    endpoint.forget_token()
                    continue
                if failure is not Failure.REFUSED:
                    self.leave(endpoint)
                again = repeat or not sent or failure is Failure.NOTHING_DONE
                if again and failure is not Failure.REFUSED and untried > 0 and time.monotonic() < until_s:
                    continue
                raise self.explained(endpoint, error, unknown=sent and failure is Failure.UNKNOWN) from None

    def explained(self, endpoint: Endpoint, error: Any, unknown: bool) -> StoreUnavailable | Compacted:
        """Return the exception to raise for `error`, with a text for operators."""
        text = (error.details() or error.code().name).removeprefix("etcdserver: ")
        if error.details() == _COMPACTED:
            return Compacted(text)
        if error.details() == _NO_SPACE:  # etcd reports this both before and after making the change
            text = "its space is used up (alarm NOSPACE). Compact and defragment it, then `etcdctl alarm disarm`"
        elif text.startswith("failed to connect to all addresses"):
            text = f"it cannot be reached: {text.rpartition('last error: ')[2].removeprefix('UNKNOWN: ')}"
        elif error.code().name == "DEADLINE_EXCEEDED":
            text = f"no answer within {self.access.timeout_s:g} s"
        elif error.code().name == "PERMISSION_DENIED":
            text = f"the user {self.access.user} may not do this: {text}"
        elif "user name is empty" in text:
            text = "it asks for a user and a password"
        return StoreUnavailable(f"etcd at {endpoint.address}: {text}", outcome_unknown=unknown)

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()
