"""Options of a controller's configuration for an etcd cluster, and the access that they give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from ...protocol.errors import OperatorError
from ...runtime.config import host_and_port
from ...runtime.directories import read_secret
from .etcd_connection import CALL_TIMEOUT_S, Access

Endpoint = Annotated[str, msgspec.Meta(min_length=3, max_length=300)]
Root = Annotated[str, msgspec.Meta(pattern=r"^(/[A-Za-z0-9._-]{1,64}){1,8}$")]


class EtcdConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses of an etcd cluster, and the credentials for it. `configs/controller.yaml` explains the options."""

    endpoints: Annotated[tuple[Endpoint, ...], msgspec.Meta(min_length=1, max_length=15)]
    root: Root | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password_file: str | None = None
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=2.0)] = CALL_TIMEOUT_S
    insecure: bool = False

    def root_of(self, cluster: str) -> str:
        """Return the prefix of all keys of `cluster`."""
        return self.root or f"/elasticctl/{cluster}"

    def access(self, directory: Path) -> Access:
        """Return the access, with the password read from its file. Relative paths start at `directory`.

        Raises OperatorError, which names the option, if an option or a file cannot be used.
        """
        for place in self.endpoints:
            host_and_port("etcd.endpoints", place)
        if self.ca is None and (self.cert, self.key, self.user) != (None, None, None):
            raise OperatorError("etcd.ca is missing: keys and passwords are for connections with TLS only")
        if (self.cert is None) != (self.key is None):
            raise OperatorError("etcd.cert and etcd.key go together")
        if (self.user is None) != (self.password_file is None):
            raise OperatorError("etcd.user and etcd.password_file go together")

        def path(name: str, given: str | None) -> Path | None:
            if given is None:
                return None
            found = directory / Path(given).expanduser()
            try:
                with found.open("rb"):
                    return found
            except OSError as error:
                raise OperatorError(f"etcd.{name}: {found}: {error.strerror}") from None

        access = Access(
            endpoints=self.endpoints,
            ca=path("ca", self.ca),
            cert=path("cert", self.cert),
            key=path("key", self.key),
            timeout_s=self.timeout_s,
            insecure=self.insecure,
        )
        if self.user is None or self.password_file is None:
            return access
        try:
            password = read_secret(directory / Path(self.password_file).expanduser()).decode().rstrip("\n")
        except (OperatorError, UnicodeDecodeError) as error:
            raise OperatorError(f"etcd.password_file: {error}") from None
        return replace(access, user=self.user, password=password)
