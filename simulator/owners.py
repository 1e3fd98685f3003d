"""Users and accounts of a trace's jobs: the owners to which quotas apply, and by which results are divided.

An account is Slurm's word for users that share a budget; Philly and Helios call theirs virtual clusters.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import UserError
from ..scheduler.profiles.tables import Table
from . import logs


class By(enum.Enum):
    """Column by which jobs are grouped."""

    USER = "user"
    ACCOUNT = "account"


ELSEWHERE = {
    By.USER: "--users FILE states each job's user",
    By.ACCOUNT: "--account COLUMN names another one",
}


def by(text: str, option: str) -> By:
    """Return the column by which jobs are grouped. Raises UserError, naming `option`."""
    if text not in [one.value for one in By]:
        known = " or ".join(one.value for one in By)
        raise UserError(f"{option}: {text!r} is not {known}; --account COLUMN says which column is the account")
    return By(text)


@dataclass(frozen=True)
class Owners:
    """Where users and accounts stand, if not in the columns of the trace's format.

    `users`: a file or table with the user of each job, and its account where known. `account`: the column of the trace
    that names accounts; the rows of several accounts are then one trace.
    """

    users: Path | Table | None = None
    account: str | None = None

    def joined(self, trace: Table, job: str, user: str, account: str) -> Table:
        """Return the trace with the columns `user` and `account` of the table `users`, by job.

        `job`: the trace's column with the jobs' names; "": there is none. Raises UserError if the tables do not match.
        """
        assert self.users is not None
        users = logs.read(self.users) if isinstance(self.users, Path) else self.users
        if not job:
            raise UserError(
                f"{users.source}: cannot say whose jobs are whose, since those of {trace.source} have no names"
            )
        key = next((column for column in (job, "job") if column in users), None)
        if key is None or user not in users:
            known = ", ".join(users.columns)
            raise UserError(f"{users.source}: line 1: wanted are columns {job} and {user}; there are {known}")
        rows = _by_job(users, key, user)
        names = trace.columns[job]
        if rows.keys().isdisjoint(names):
            raise users.wrong(0, key, f"neither {users.columns[key][0]!r} nor another one is a job of {trace.source}")
        found = {
            column: [users.columns[column][rows[name]] if name in rows else "" for name in names]
            for column in (user, account)
            if column in users
        }
        return Table(trace.source, {**trace.columns, **found}, trace.lines)


OF_FORMAT = Owners()


def _by_job(users: Table, key: str, user: str) -> dict[str, int]:
    """Return the first row of each job. Raises UserError if a job has two users."""
    rows: dict[str, int] = {}
    values = users.columns[user]
    for row, name in enumerate(users.columns[key]):
        first = rows.setdefault(name, row)
        if values[first] != values[row]:
            other = f"{values[first]!r} in line {users.lines[first]}"
            raise users.wrong(row, user, f"the job {name} has the user {values[row]!r} here and {other}")
    return rows
