"""Authenticated identities (principals) and their roles.

A connection proves its principal by a key, or by the kernel's credentials of a local socket. A principal is never taken
from the text of a message.
"""

from __future__ import annotations

import enum
import re

from .errors import UserError
from .model import Value

LOCAL = "local"  # the principal of the account that started a cluster of one machine

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Role(enum.Enum):
    """Role of a principal: the rights that it has."""

    USER = "user"  # submits jobs, sees all jobs, acts on its own
    READER = "reader"  # sees all jobs and the cluster, and changes nothing
    OPERATOR = "operator"  # acts on all jobs and on the cluster
    SERVER = "server"  # reports on the workers that were assigned to it
    CONTROLLER = "controller"


CLIENT_ROLES = (Role.USER, Role.READER, Role.OPERATOR)  # roles of people and of the programs that act for them


class Principal(Value, frozen=True, kw_only=True):
    """An identity that is known to the controller."""

    role: Role
    name: str
    account: str = ""  # Unix account under which the jobs of a user or an operator run; "": the agent's own

    def __str__(self) -> str:
        return f"{self.role.value}:{self.name}"


LOCAL_OPERATOR = Principal(role=Role.OPERATOR, name=LOCAL)


def parse(text: str) -> tuple[Role, str]:
    """Return role and name of "user:alice". Raises UserError if `text` has another form."""
    role, _, name = text.partition(":")
    try:
        found = Role(role)
    except ValueError:
        roles = ", ".join(each.value for each in Role)
        raise UserError(f"{text[:80]!r} is not ROLE:NAME with a role of {roles}") from None
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name[:80]!r} is not a name: letters, digits, '.', '_' and '-', at most 64, a letter or digit first"
        )
    return found, name
