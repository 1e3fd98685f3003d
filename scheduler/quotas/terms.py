"""Quotas as a policy file states them (ElasticFlow 4.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
GpuHours = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quota of a user or a group. `gpus`: so many GPUs are guaranteed to its jobs together; they may borrow GPUs that
    others leave idle. `most_gpus`: they never have more than this; null: no bound. `jobs`: so many may be unfinished at
    once; null: no bound. `promised_gpu_hours`: hard deadlines of its jobs hold no more GPU time than this; null: no
    bound.

    Raises ValueError, which a policy file's reader turns into a sentence with the field.
    """

    gpus: Count = 0
    most_gpus: Count | None = None
    jobs: Count | None = None
    promised_gpu_hours: GpuHours | None = None

    def __post_init__(self) -> None:
        if self.most_gpus is not None and self.most_gpus < self.gpus:
            raise ValueError(f"most_gpus {self.most_gpus} is less than gpus {self.gpus}, which are guaranteed")


class Group(Quota, frozen=True, forbid_unknown_fields=True):
    """Users with one common quota."""

    members: tuple[str, ...] = ()


NO_QUOTA = Quota()


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of all users. `users` and `groups` by name; `default`: of each user in neither.

    The GPUs of a group's members count for the group. A member that is also listed under `users` may only have `jobs`
    and `promised_gpu_hours` there.
    """

    users: dict[str, Quota] = {}
    groups: dict[str, Group] = {}
    default: Quota = NO_QUOTA

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for name, group in self.groups.items():
            if not group.members:
                raise ValueError(f"group {name} has no members")
            for member in group.members:
                if member in seen:
                    raise ValueError(f"{member} is a member of {seen[member]} and again of {name}: one group each")
                seen[member] = name
                own = self.users.get(member, NO_QUOTA)
                if own.gpus or own.most_gpus is not None:
                    raise ValueError(
                        f"{member} is a member of {name}, whose gpus count for it: only jobs and promised_gpu_hours "
                        "may stand under users"
                    )

    @property
    def any(self) -> bool:
        """Whether any quota is stated."""
        return bool(self.users or self.groups) or self.default != NO_QUOTA

    def group_of(self, user: str) -> str | None:
        """Return the group of a user; None: in none."""
        return next((name for name, group in self.groups.items() if user in group.members), None)

    def own(self, user: str) -> Quota:
        """Return a user's own quota: none for a group's member that `users` does not list."""
        return self.users.get(user, self.default if self.group_of(user) is None else NO_QUOTA)

    def tenant(self, user: str) -> str:
        """Return the tenant for which the GPUs of a user's jobs count: "group vision", or "user alice"."""
        group = self.group_of(user)
        return f"user {user}" if group is None else f"group {group}"

    def refusal(self, user: str, unfinished: Callable[[str], int]) -> str:
        """Return why `jobs` has no room for another job of `user`; "" if there is room. `unfinished`: jobs of a user."""
        own, group = self.own(user), self.group_of(user)
        if own.jobs is not None and (count := unfinished(user)) >= own.jobs:
            return f"{user} has {count} unfinished jobs already, and may have {own.jobs} (quotas)"
        if group is None or (most := self.groups[group].jobs) is None:
            return ""
        count = sum(unfinished(member) for member in self.groups[group].members)
        return (
            f"group {group} has {count} unfinished jobs already, and may have {most} (quotas)" if count >= most else ""
        )

    def quota(self, tenant: str) -> Quota:
        """Return the quota of a tenant, as named by `tenant`."""
        kind, _, name = tenant.partition(" ")
        return self.groups[name] if kind == "group" else self.own(name)


NO_QUOTAS = Quotas()
