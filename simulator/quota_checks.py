"""Whether quotas suit a trace: to whom they apply, and whether the trace names the owners that they name.

The controller knows the user of each job. A trace may know users, accounts or both; each account counts as one user of the
policy file where quotas are by account.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.texts import gpu_count
from ..scheduler.options import WrongOption
from ..scheduler.profiles.tables import listed
from ..scheduler.quotas.terms import Quotas
from .files import refused
from .owners import By
from .traces import Trace


def owner(trace: Trace, asked: By | None) -> By:
    """Return to whom quotas apply: as asked, else to users, or to accounts if the trace knows no users."""
    if asked is not None:
        return asked
    return By.ACCOUNT if By.ACCOUNT in trace.owners and By.USER not in trace.owners else By.USER


def check(quotas: Quotas, by: By, trace: Trace, source: str) -> None:
    """Raise UserError if some job has no owner, or the quotas cannot be applied to the trace.

    `source`: the file with the quotas, or the name of another document.
    """
    trace.check_owners(by, f"quotas by {by.value}", every=True)
    for field, name in _names(quotas):
        if name not in trace.known_owners[by]:
            raise refused(source, WrongOption(source, field, _unknown(trace, by, name)))


def remark(quotas: Quotas, by: By, trace: Trace, gpus: int) -> str:
    """Return that the guarantees exceed the GPUs of the cluster; "" if they do not."""
    tenants = dict.fromkeys(map(quotas.tenant, dict.fromkeys(trace.owners[by])))
    guaranteed = sum(quotas.quota(tenant).gpus for tenant in tenants)
    if guaranteed <= gpus:
        return ""
    return f"quotas guarantee {gpu_count(guaranteed)}, and the cluster has {gpus}: guarantees shrink in proportion"


def _unknown(trace: Trace, by: By, name: str) -> str:
    text = f"{trace.table.source} has no job of {by.value} {name!r}, only of {listed(trace.known_owners[by])}"
    other = next((one for one, names in trace.known_owners.items() if name in names), None)
    return text if other is None else f"{text}; there is such an {other.value}: --quotas-by {other.value}"


def _names(quotas: Quotas) -> Iterator[tuple[str, str]]:
    """Yield the owners that are named, with their fields."""
    for name in quotas.users:
        yield f"quotas.users.{name}", name
    for group, own in quotas.groups.items():
        for at, name in enumerate(own.members):
            yield f"quotas.groups.{group}.members[{at}]", name
