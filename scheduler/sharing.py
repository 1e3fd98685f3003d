"""Shares of all jobs: the policy decides, as far as its shares can be placed. Pure.

Theory of operation
-------------------

Policies divide a number of GPUs and know nothing of GPU types. This module therefore cuts the GPUs into *parts*: a job
may use all of a part or none of it. A job has one or more *choices*, which are sets of parts. All GPUs of a job belong
to one choice (`kinds`: one GPU type for the whole life of a job, unless the job states that types do not matter).
Where every job may use every GPU there is one part, and the policy is asked once. Otherwise:

1. The policy divides all GPUs among all jobs. Each job with a share selects a choice: first one where the job has GPUs,
   then one where its whole share is free, then one that is least wanted by jobs without an alternative.
2. The jobs that are confined to some parts may have got more than these parts have (Hall's condition, for the smallest
   such set of parts). Then the policy divides these parts alone among these jobs, so that they compete by the rule of
   the policy. A job that gets nothing there and may go elsewhere joins the other jobs. Then the policy divides the rest
   among the others.
3. If GPUs are left in a part and some job could use them, the policy divides this part alone among the jobs of this
   part. An obstacle for all jobs need not be one for these: while the first job of the queue waits for an A100, a job
   that waits for a V100 can start. The answer holds if it gives more GPUs than before.

The consequences: every share can be placed; where jobs compete, those with the fewest usable GPUs come first; no GPU is
idle that the policy would give to a job.

Jobs with promised deadlines precede the policy: each gets the GPUs of its plan, of one type (`Needs`). A job without
time for a change keeps its very GPUs. The policy divides the other GPUs among the jobs without promises, and what these
cannot use among the promised jobs (`grow_promised`).

A job that demands a fixed number of GPUs on each server is assigned its exact GPUs here (`seats`), before the other
jobs. Otherwise it would be unknown whether its share can be placed. The job stays on its servers while it can.
Otherwise it takes servers with enough idle GPUs, in one rack.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from .arrays import Ints
from .deadline_guard import Needs, raised
from .kinds import ANY
from .nearness import nearest
from .policies import Policy
from .policies.base import Shares, no_shares
from .sets import elements, some, union
from .view import ClusterView, Gpus, JobTable, Limit, Schedules

Choice = int  # a set of parts
Room = list[int]  # GPUs that are left, by part

MOST_SETS = 64  # most sets of parts that the search for a scarce set examines
DEPTH = 4  # how often the policy is asked again, for each part


@dataclass(frozen=True)
class Held:
    """Shares, amounts and seats of some rows, as in `Sharing`."""

    given: Ints
    amounts: dict[int, dict[int, int]]
    seats: dict[int, Gpus]


class Sharing:
    """Shares of one decision while they are being built.

    `given`: share by row, in GPUs. `seats`: the exact GPUs of each job with a fixed number of GPUs per server. `whole`:
    there is one part, and no such job. `amounts`: otherwise, GPUs by part, of each job without seats. `loose`: the rows
    about which the policy decides; None: all. `fixed`: shares that precede the policy, by row.
    """

    def __init__(
        self,
        view: ClusterView,
        policy: Policy,
        rng: random.Random,
        without: Collection[int] = frozenset(),
        needs: Needs | None = None,
    ) -> None:
        """Give the shares that precede the policy.

        Promised jobs come first. Manual shares follow, in the order of submission, as large as they fit, then the head
        of the queue, if the GPUs that are held for it are free. `without`: rows that get no GPUs. `needs`: None: there
        are no promises.
        """
        self.given = no_shares(view.jobs)
        self.amounts: dict[int, dict[int, int]] = {}
        self.seats: dict[int, Gpus] = {}
        self._seated: Gpus = 0  # union of all seats, and of the GPUs that jobs without time for a change keep
        self.review_s = math.inf
        self._view, self._policy, self._rng, self._without, self.needs = view, policy, rng, without, needs
        self.parts = _parts(view, needs.homes.values() if needs is not None else ())
        self.whole = len(self.parts) == 1 and not any(limit.demand.per_server for limit in view.limits)
        self._home = {row: _covered(home, self.parts) for row, home in needs.homes.items()} if needs is not None else {}
        self._barred: dict[int, Choice] = {}
        self._asked: list[tuple[Ints | None, Shares]] = []  # the policy's answers, each with its rows; None: all
        self._room: Room = [part.bit_count() for part in self.parts]
        self.loose = self._begin()
        self.fixed = (
            {row: int(self.given[row]) for row in self.given.nonzero()[0].tolist()} if self.loose is not None else {}
        )

    def again(self) -> Sharing:
        """Return a copy from before `share_out`, with the policy's answers so far."""
        found = Sharing(self._view, self._policy, self._rng, self._without, self.needs)
        found._asked, found.review_s = self._asked.copy(), self.review_s
        return found

    def _begin(self) -> Ints | None:
        view, head = self._view, self._view.reservation
        if self.needs is not None:
            self._keep_promises(self.needs)
        for row, wanted in sorted(view.manual_shares.items()):
            self._least[row] = min(wanted, self._least[row])  # a share below the minimum is its own minimum
            self._by_hand(row, wanted)
        if head is not None:
            self._by_hand(head.row, head.gpus)
        others = [*view.manual_shares, *self._without, *self._home, *([head.row] if head is not None else ())]
        if not others:
            return None
        rows = np.ones(len(view.jobs), dtype=bool)
        rows[others] = False
        return rows.nonzero()[0]

    def share_out(self) -> None:
        """Give the shares of the policy."""
        if self.whole:
            self._share(self.loose, self._room, 0)
            return
        rows = np.arange(len(self.given)) if self.loose is None else self.loose
        self._share(rows, self._room, DEPTH * len(self.parts))
        if any(self._room):
            self._offer(rows)

    @property
    def room(self) -> Room:
        """GPUs by part that the policy divides, before `share_out`."""
        return list(self._room)

    # -- where jobs may go

    @cached_property
    def _limits(self) -> tuple[Limit, ...]:
        everywhere = (Limit(ANY, ((1 << self._view.total_gpus) - 1,)),)
        return self._view.limits if self._view.limit_of is not None else everywhere

    @cached_property
    def _idle(self) -> Gpus:
        return ~union(self._view.placements.values())

    @cached_property
    def _limit_of(self) -> Ints:
        limit_of = self._view.limit_of
        return limit_of if limit_of is not None else no_shares(self._view.jobs)

    @cached_property
    def _code(self) -> list[int]:
        return list(self._limit_of.tolist())

    @cached_property
    def _least(self) -> list[int]:
        return list(self._view.jobs.min_gpus.tolist())

    @cached_property
    def _offsets(self) -> list[int]:
        return list(accumulate((len(server.gpus) for server in self._view.servers), initial=0))

    @cached_property
    def _racks(self) -> Ints:
        """Number of each server's rack."""
        return np.unique([server.rack for server in self._view.servers], return_inverse=True)[1]

    @cached_property
    def _choices(self) -> list[tuple[Choice, ...]]:
        """Choices by limit."""
        return [
            tuple(dict.fromkeys(_covered(option, self.parts) for option in limit.options)) for limit in self._limits
        ]

    @cached_property
    def _parts_of(self) -> dict[Choice, tuple[int, ...]]:
        known = {*self._home.values(), *(choice for choices in self._choices for choice in choices)}
        return {choice: tuple(elements(choice)) for choice in sorted(known)}

    @cached_property
    def _mask(self) -> dict[Choice, Gpus]:
        return {choice: union(self.parts[part] for part in own) for choice, own in self._parts_of.items()}

    @cached_property
    def _size(self) -> dict[Choice, int]:
        return {choice: mask.bit_count() for choice, mask in self._mask.items()}

    @cached_property
    def _each(self) -> Ints:
        """Fixed number of GPUs per server, by limit; 0: any number."""
        return np.array([limit.demand.per_server for limit in self._limits])

    def most_of(self, limit: Limit) -> int:
        """Return the largest share that a limit allows on this cluster."""
        each = limit.demand.per_server
        if not each:
            return max([option.bit_count() for option in limit.options], default=0)
        servers = [((1 << b) - 1) & ~((1 << a) - 1) for a, b in zip(self._offsets, self._offsets[1:], strict=False)]
        return each * max(
            [sum((s & option).bit_count() >= each for s in servers) for option in limit.options], default=0
        )

    @cached_property
    def caps(self) -> Ints:
        """The largest shares that the limits of the jobs allow on this cluster, by row."""
        asked = [(limit.options, limit.demand.per_server) for limit in self._limits]
        most = {key: self.most_of(limit) for key, limit in zip(asked, self._limits, strict=True)}
        return np.array([most[key] for key in asked], dtype=np.int64)[self._limit_of]

    # -- shares of some rows

    def share(self, rows: Ints, room: Sequence[int]) -> None:
        """Divide `room` (GPUs by part) among rows that have no GPUs."""
        for row in rows.tolist() if self._barred else ():
            self._barred.pop(row, None)
        self._share(rows, list(room), DEPTH * len(self.parts))

    def take(self, rows: Ints) -> Held:
        """Remove and return the shares of these rows, so that `give` can restore them."""
        held = Held(
            given=self.given[rows],
            amounts={row: self.amounts.pop(row) for row in rows.tolist() if row in self.amounts},
            seats={row: self.seats.pop(row) for row in rows.tolist() if row in self.seats},
        )
        self.given[rows] = 0
        self._seated &= ~union(held.seats.values())
        return held

    def give(self, rows: Ints, held: Held) -> None:
        """Undo `take`: restore `held`, and drop all GPUs that these rows have got since."""
        self.take(rows)
        self.given[rows] = held.given
        self.amounts.update(held.amounts)
        self.seats.update(held.seats)
        self._seated |= union(held.seats.values())

    def used(self, rows: Ints) -> Room:
        """Return the number of GPUs that these rows have, by part."""
        if self.whole:
            return [int(self.given[rows].sum())]
        found = [0] * len(self.parts)
        for row in rows.tolist():
            for part, count in self.amounts.get(row, {}).items():
                found[part] += count
            if seat := self.seats.get(row):
                for part, mask in enumerate(self.parts):
                    found[part] += (seat & mask).bit_count()
        return found

    def ways(self, row: int) -> list[tuple[int, ...]]:
        """Return the choices of a job, each as its parts; an empty list if no choice has the job's minimum.

        A job with GPUs, present or given in this decision, has only the choice where these are.
        """
        own = self.amounts.get(row)
        has = (
            union(self.parts[part] for part in own) if own else self.seats.get(row) or self._view.placements.get(row, 0)
        )
        size, least = self._size, self._least[row]
        found = [choice for choice in self._choices[self._code[row]] if size[choice] >= least]
        there = [choice for choice in found if has & self._mask[choice]] if has else []
        if has and (all_of_it := [choice for choice in there if not has & ~self._mask[choice]]):
            there = all_of_it[:1]
        return [self._parts_of[choice] for choice in there or found]

    def within(self, part: int) -> Ints:
        """Return the rows of the jobs with GPUs in this part alone, except those with seats."""
        if self.whole:
            return self.given.nonzero()[0]
        return np.array(sorted(row for row, own in self.amounts.items() if set(own) == {part}), dtype=np.int64)

    def set_within(self, part: int, rows: Ints, given: Ints) -> None:
        """Set the shares of rows that are `within` a part."""
        self.given = self.given.copy()
        self.given[rows] = given
        if not self.whole:
            self.amounts |= {
                row: {part: share} if share else {} for row, share in zip(rows.tolist(), given.tolist(), strict=True)
            }

    # -- the policy's answers

    def told(self, row: int) -> tuple[Shares, int] | None:
        """Return the policy's last answer about a job, and the job's row there; None if the policy was not asked."""
        for rows, shares in reversed(self._asked):
            at = row if rows is None else int(np.searchsorted(rows, row))
            if rows is None or (at < len(rows) and rows[at] == row):
                return shares, at
        return None

    @property
    def having(self) -> Ints | None:
        """The rows with GPUs, as in `Shares.rows`; None: not stated."""
        whole = len(self._asked) == 1 and self.given is self._asked[0][1].gpus
        return self._asked[0][1].rows if whole else None

    @property
    def stay(self) -> Collection[int]:
        """The rows without time for a change, by promises or by the policy's answers."""
        if self.needs is not None:
            return self.needs.stay
        return [at if rows is None else int(rows[at]) for rows, answer in self._asked for at in answer.stay]

    @property
    def schedules(self) -> Schedules | None:
        """The schedules of the policy's first answer."""
        return self._asked[0][1].schedules if self._asked else None

    # -- promises

    def _keep_promises(self, needs: Needs) -> None:
        """Give each promised job its GPUs: first those that stay where they are, then the others.

        Soft deadlines refuse no job, so jobs with such a deadline move out of the way of a hard one.
        """
        present, least = self._view.placements, needs.least
        stays = {
            row
            for row, gpus in least.items()
            if row in needs.stay and (has := present.get(row, 0)).bit_count() == gpus and not has & ~needs.homes[row]
        }
        fixed = {row for row in least if self._each[self._code[row]]}
        for is_soft in (False, True):
            own = {row for row in least if bool(self._view.jobs.soft[row]) == is_soft}
            stays -= {row for row in stays & own - fixed if present[row] & self._seated}
            self._seated |= union(present[row] for row in stays & own - fixed)
            for row in sorted(fixed & own, key=lambda row: (row not in stays, row)):
                self._seat(row, least[row], self._room, (self._home[row],))
        others = {}
        for row, gpus in least.items():
            if row in stays and row not in fixed:
                there = {part: (present[row] & mask).bit_count() for part, mask in enumerate(self.parts)}
                self.amounts[row] = {part: count for part, count in there.items() if count}
                self.given[row] = gpus
                for part, count in there.items():
                    self._room[part] -= count
            elif row not in fixed:
                others[row] = gpus
        self._pour({row: self._home[row] for row in others}, others, self._room)

    def grow_promised(self, most: Ints) -> None:
        """Offer the GPUs that no other job has taken to promised jobs with time for a change.

        `most`: by row, the largest share that is allowed.
        """
        needs = self.needs
        if needs is None:
            return
        self.given = self.given.copy()
        taken = self.used(np.arange(len(self.given)))
        room = [part.bit_count() - used for part, used in zip(self.parts, taken, strict=True)]
        for home in dict.fromkeys(self._home.values()):
            rows = [row for row, own in sorted(self._home.items()) if own == home and row not in needs.stay]
            rows = [row for row in rows if self._least[row] <= most[row]]
            free = sum(room[part] for part in self._parts_of[home])
            if free <= 0 or not rows:
                continue
            chosen = np.array(rows, dtype=np.int64)
            total = free + int(self.given[chosen].sum())
            least = {at: gpus for at, row in enumerate(rows) if (gpus := int(self.given[row]))}
            asked = np.minimum(self._ask(chosen, total), np.maximum(most[chosen], self.given[chosen]))
            found = raised(self._view.jobs.cut(chosen), asked, least, total)
            wanted = {row: share for row, share in zip(rows, found.tolist(), strict=True) if share}
            for row in rows:
                for part, count in self.amounts.pop(row, {}).items():
                    room[part] += count
                self.given[row] = 0
            self._pour(dict.fromkeys(wanted, home), wanted, room)

    # -- asking

    def _ask(self, rows: Ints | None, gpus: int) -> Ints:
        """Return the policy's shares for these rows (None: all) when it divides `gpus` GPUs."""
        jobs, limited = self._view.jobs, self._view.limit_of is not None
        if rows is None and not limited and jobs.most_needed <= gpus:
            return self._answer(None, jobs, gpus).gpus
        rows = np.arange(len(jobs)) if rows is None else rows
        given, least = np.zeros(len(rows), dtype=np.int64), jobs.min_gpus[rows]
        able, each, most = least <= gpus, least, least
        if limited:
            each = np.maximum(self._each[self._limit_of[rows]], 1)
            most = np.minimum(jobs.max_gpus[rows], self.caps[rows]) // each * each
            able &= least <= most  # a job whose maximum is below the GPUs of one server can have none
        asked = rows[able]
        if not len(asked) or gpus <= 0:
            return given
        table = jobs.cut(asked)
        given[able] = self._answer(asked, table.within(most[able]) if limited else table, gpus).gpus
        return given // each * each if limited else given

    def _answer(self, rows: Ints | None, table: JobTable, gpus: int) -> Shares:
        if not self._policy.needs_lengths:
            table = table.without_lengths()
        told = self._policy.shares(table, gpus, self._view.now, self._rng)
        self._asked.append((rows, told))
        if told.review_s > self._view.now:
            self.review_s = min(self.review_s, told.review_s)
        return told

    def _share(self, rows: Ints | None, room: Room, depth: int) -> None:
        """Divide `room` among these rows. `rows`: None: all, where there is one part; otherwise, `room` is what is left
        afterwards."""
        if self.whole:
            given = self._ask(rows, room[0])
            if rows is None:
                self.given = given
            else:
                self.given[rows] = given
            return
        if rows is None or not len(rows):
            return
        given = self._ask(rows, sum(room))
        gangs = (self._each[self._limit_of[rows]] > 0) & (given > 0)
        short = False
        for row, wanted in zip(rows[gangs].tolist(), given[gangs].tolist(), strict=True):
            short |= self._seat(row, wanted, room) < wanted
        rows, given = rows[~gangs], given[~gangs]
        if short and depth:
            self._share(rows, room, depth - 1)
        else:
            self._settle(rows, given, room, depth)

    def _settle(self, rows: Ints, given: Ints, room: Room, depth: int) -> None:
        """Give these shares where they can be placed; otherwise ask the policy again, first for the jobs that compete
        for too few GPUs."""
        getting = given > 0
        wanted = dict(zip(rows[getting].tolist(), given[getting].tolist(), strict=True))
        homes = self._homes(wanted, room)
        scarce = _overfull(homes, wanted, room) if depth else None
        if scarce is None:
            self._pour(homes, wanted, room)
            return
        confined = [not any(choice & ~scarce for choice in choices) for choices in self._choices]
        inside = np.array(confined, dtype=bool)[self._limit_of[rows]]
        inside[getting] = [not homes[row] & ~scarce for row in rows[getting].tolist()]
        within = [left if scarce >> part & 1 else 0 for part, left in enumerate(room)]
        before = within.copy()
        self._share(rows[inside], within, depth - 1)
        for part, left in enumerate(within):
            room[part] -= before[part] - left
        for row in wanted:
            if not homes[row] & ~scarce and not self.given[row]:
                self._barred[row] = self._barred.get(row, 0) | scarce
        inside[getting] &= [self.given[row] > 0 or not self._ways(row) for row in rows[getting].tolist()]
        self._share(rows[~inside], room, depth - 1)

    def _ways(self, row: int) -> list[Choice]:
        """Return the choices that a job still has, without those smaller than its minimum: the job would be bound to
        such a choice."""
        key = self._code[row], self._barred.get(row, 0), self._least[row]
        found = self._known_ways.get(key)
        if found is None:
            code, barred, least = key
            found = [c for c in self._choices[code] if c & ~barred and self._size[c] >= least]
            self._known_ways[key] = found
        return found

    @cached_property
    def _known_ways(self) -> dict[tuple[int, int, int], list[Choice]]:
        return {}

    def _smallest_first(self, homes: Mapping[int, Choice], rows: Iterable[int]) -> list[int]:
        """Return the rows in the order of the sizes of their choices, then of the rows."""
        size = self._size
        return sorted(sorted(rows), key=lambda row: size[homes[row]])

    def _homes(self, wanted: Mapping[int, int], room: Room) -> dict[int, Choice]:
        """Return the choice that each of these jobs selects. Jobs with a single choice are counted first."""
        homes: dict[int, Choice] = {}
        left = room.copy()
        free_to_choose = []
        for row in wanted:
            ways = self._ways(row)
            if len(ways) == 1:
                homes[row] = ways[0]
            else:
                free_to_choose.append((row, ways))
        pressed = [0] * len(left)  # by part: GPUs that the other jobs want of it
        for row in self._smallest_first(homes, homes):
            self._take(homes[row], wanted[row], left, pressed)
        for row, ways in free_to_choose:
            has, share, least = self._view.placements.get(row, 0), wanted[row], self._least[row]

            def cost(choice: Choice, has: Gpus = has, share: int = share, least: int = least) -> tuple[int, ...]:
                free = sum(left[part] for part in self._parts_of[choice])
                wanted_there = sum(pressed[part] for part in self._parts_of[choice])
                there = (has & self._mask[choice]).bit_count()
                return free < least, -there, share - min(free, share), wanted_there, -free, choice

            homes[row] = min(ways, key=cost)
            self._take(homes[row], share, left, pressed)
        return homes

    def _take(self, choice: Choice, share: int, left: Room, pressed: list[int]) -> None:
        """Count a share against the parts of a choice. The exact part is decided later, in `_pour`."""
        parts = self._parts_of[choice]
        for part in parts:
            pressed[part] += share
        for part in sorted(parts, key=lambda part: -left[part]) if len(parts) > 1 else parts:
            taken = min(left[part], share)
            left[part] -= taken
            share -= taken

    # -- giving

    def _pour(self, homes: Mapping[int, Choice], wanted: Mapping[int, int], room: Room) -> None:
        """Give each job its share in parts, jobs with the smallest choice first.

        A job stays in its parts, and in one part, if it can.
        """
        present = self._view.placements
        for row in self._smallest_first(homes, wanted):
            need, parts = wanted[row], self._parts_of[homes[row]]
            if room[parts[0]] >= need and len(parts) == 1:
                room[parts[0]] -= need
                self.amounts[row] = {parts[0]: need}
                self.given[row] = need
                continue
            own, has = self.amounts.setdefault(row, {}), present.get(row, 0)
            there = {part: (has & self.parts[part]).bit_count() for part in parts}
            for part in sorted(there, key=lambda part: (-there[part], room[part] < need, abs(room[part] - need), part)):
                taken = min(room[part], need)
                if taken:
                    own[part] = own.get(part, 0) + taken
                    room[part] -= taken
                    need -= taken
            while need and (aside := self._moved_aside(homes, homes[row], room)) is not None:
                own[aside] = own.get(aside, 0) + 1
                room[aside] -= 1
                need -= 1
            if need and wanted[row] - need < self._least[row]:
                for part, taken in self.amounts.pop(row).items():
                    room[part] += taken
                continue
            self.given[row] = wanted[row] - need

    def _moved_aside(self, homes: Mapping[int, Choice], choice: Choice, room: Room) -> int | None:
        """Return a part of `choice` with a free GPU after other jobs have moved one of theirs to another part; None if
        there is none."""
        # by part: the row that could move into it, and the part that this row would leave
        came_from: dict[int, tuple[int, int]] = {}
        frontier = elements(choice)
        seen = choice
        while frontier:
            part = frontier.pop(0)
            if room[part]:
                while part in came_from:
                    row, before = came_from[part]
                    own = self.amounts[row]
                    own[part] = own.get(part, 0) + 1
                    own[before] -= 1
                    if not own[before]:
                        del own[before]
                    room[part] -= 1
                    room[before] += 1
                    part = before
                return part
            for row, home in homes.items():
                if self.amounts.get(row, {}).get(part):
                    for other in elements(home & ~seen):
                        seen |= 1 << other
                        came_from[other] = (row, part)
                        frontier.append(other)
        return None

    def _by_hand(self, row: int, wanted: int) -> None:
        least = min(wanted, self._least[row])
        each = int(self._each[self._code[row]])
        if not self._ways(row):
            return
        if each:
            self._seat(row, wanted // each * each, self._room)
            return
        choice = self._homes({row: wanted}, self._room)[row]
        share = min(wanted, sum(self._room[part] for part in elements(choice)))
        if share >= least:
            self._pour({row: choice}, {row: share}, self._room)

    def _offer(self, loose: Ints) -> None:
        """Offer the GPUs that are left in each part to the jobs that could use them.

        `loose`: the rows that the policy decides.
        """
        jobs, rows = self._view.jobs, np.zeros(len(self.given), dtype=bool)
        rows[loose] = True
        for part, mask in enumerate(self.parts):
            left = self._room[part]
            if not left:
                continue
            able = np.array([any(choice >> part & 1 for choice in choices) for choices in self._choices], dtype=bool)
            alone = {row for row, own in self.amounts.items() if rows[row] and set(own) == {part}}
            held = sum([int(self.given[row]) for row in alone])
            waiting = rows & (self.given == 0) & able[self._limit_of] & (jobs.min_gpus <= left + held)
            grown = any(self.given[row] < min(int(jobs.max_gpus[row]), int(self.caps[row])) for row in alone)
            if not grown and not waiting.any():
                continue
            self._ask_for_part(part, mask, np.sort(np.array([*np.flatnonzero(waiting), *alone], dtype=np.int64)), alone)

    def _ask_for_part(self, part: int, mask: Gpus, rows: Ints, alone: Iterable[int]) -> None:
        """Ask the policy about the jobs with GPUs in this part alone, together with the jobs that have none."""
        held = sum([int(self.given[row]) for row in alone])
        room = [0] * len(self.parts)
        room[part] = self._room[part] + held
        reviewed_s, asked = self.review_s, len(self._asked)
        given = self._ask(rows, room[part])
        if given.sum() <= held:
            self.review_s = reviewed_s
            del self._asked[asked:]
            return
        for row in alone:
            self.given[row] = 0
            del self.amounts[row]
        for row, share in zip(rows.tolist(), given.tolist(), strict=True):
            if share and self._each[self._limit_of[row]]:
                self._seat(row, share, room)
        for row, share in zip(rows.tolist(), given.tolist(), strict=True):
            if share and not self._each[self._limit_of[row]]:
                self.amounts[row] = {part: share}
                self.given[row] = share
                room[part] -= share
        self._room[part] = room[part]

    # -- a fixed number of GPUs on each server

    def _seat(self, row: int, wanted: int, room: Room, ways: Sequence[Choice] | None = None) -> int:
        """Assign a job its exact GPUs, on as many servers as `wanted` takes, or on fewer.

        Return the number of GPUs; 0 if too few are free. `ways`: the choices among which it may select; None: its own.
        """
        each, has = int(self._each[self._code[row]]), self._view.placements.get(row, 0)
        best: list[Gpus] = []
        for choice in (self._ways(row) if ways is None else ways) if wanted >= each else ():
            able = self._mask[choice] & ~self._seated
            found = self._stays(able, each, wanted // each, has, room)
            found = found or self._seats(able, each, wanted // each, has, room)
            if len(found) > len(best):
                best = found
        least = min(wanted, self._least[row])
        if not best or len(best) * each < least:
            return 0
        self.seats[row] = union(best)
        self._seated |= self.seats[row]
        self.given[row] = len(best) * each
        for part, mask in enumerate(self.parts):
            room[part] -= (self.seats[row] & mask).bit_count()
        return len(best) * each

    def _stays(self, able: Gpus, each: int, count: int, has: Gpus, room: Sequence[int]) -> list[Gpus]:
        """Return the result of `_seats` if it is where the job already is.

        Most jobs stay, so the other servers need no look-up.
        """
        found: list[Gpus] = []
        rest = has & able
        while rest:
            at = bisect.bisect_right(self._offsets, (rest & -rest).bit_length() - 1) - 1
            here = rest & ((1 << self._offsets[at + 1]) - (1 << self._offsets[at]))
            rest ^= here
            if here.bit_count() >= each:
                found.append(some(each, here))
        gpus = union(found)
        fits = all((gpus & mask).bit_count() <= left for mask, left in zip(self.parts, room, strict=True))
        return found if len(found) == count and fits else []

    def _seats(self, able: Gpus, each: int, count: int, has: Gpus, room: Sequence[int]) -> list[Gpus]:
        """Return the GPUs on each of up to `count` servers, `each` GPUs on one server."""
        idle = self._idle
        left = list(room)
        able_there = self._by_server(able)
        servers = np.flatnonzero(able_there >= each)
        own = self._by_server(able & has)[servers]
        unused = self._by_server(able & (idle | has))[servers]
        rack = self._rack_ranks(servers, own, count)
        order = np.lexsort((servers, unused, rack, unused < each, -own, own < each))
        found: list[Gpus] = []
        for at in servers[order].tolist():
            free = able & ((1 << self._offsets[at + 1]) - (1 << self._offsets[at]))
            seat = self._seat_on(at, each, free, has, idle)
            needs = [(seat & mask).bit_count() for mask in self.parts]
            if all(need <= rest for need, rest in zip(needs, left, strict=True)):
                left = [rest - need for need, rest in zip(needs, left, strict=True)]
                found.append(seat)
            if len(found) == count:
                break
        return found

    def _by_server(self, gpus: Gpus) -> Ints:
        """Return how many of these GPUs each server has."""
        size = self._offsets[-1]
        bits = np.unpackbits(np.frombuffer(gpus.to_bytes(size // 8 + 1, "little"), dtype=np.uint8), bitorder="little")
        before = np.concatenate(([0], np.cumsum(bits[:size], dtype=np.int64)))
        return np.diff(before[self._offsets])

    def _rack_ranks(self, servers: Ints, own: Ints, count: int) -> Ints:
        """Return the rank of each server's rack for a job, 0 for the best.

        Racks where the job has GPUs (`own`, by server) come first, then the rack into which the whole job fits most
        tightly, then the largest.
        """
        racks = self._racks[servers]
        number = np.bincount(racks, minlength=len(self._racks))
        there = np.bincount(racks, weights=own, minlength=len(self._racks)) > 0
        order = np.lexsort((np.arange(len(number)), abs(number - count), number < count, ~there))
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        return ranks[racks]

    def _seat_on(self, at: int, each: int, free: Gpus, has: Gpus, idle: Gpus) -> Gpus:
        server, begin = self._view.servers[at], self._offsets[at]
        kept = some(each, free & has)
        pool = free & idle if (free & idle & ~kept).bit_count() >= each - kept.bit_count() else free
        if not server.near or kept.bit_count() == each:
            return some(each, kept, pool, free)
        more = each - kept.bit_count()
        return kept | nearest(server.near, len(server.gpus), more, (pool & ~kept) >> begin, kept >> begin)[1] << begin


def _parts(view: ClusterView, homes: Iterable[Gpus]) -> tuple[Gpus, ...]:
    """Return the GPUs in view, cut into the largest parts that no option divides, nor any of `homes`."""
    parts = [(1 << view.total_gpus) - 1]
    for option in dict.fromkeys([*(option for limit in view.limits for option in limit.options), *homes]):
        parts = [piece for part in parts for piece in (part & option, part & ~option) if piece]
    return tuple([part for part in parts if part])


def _covered(option: Gpus, parts: Sequence[Gpus]) -> Choice:
    return sum(1 << number for number, part in enumerate(parts) if part & option)


def _overfull(homes: Mapping[int, Choice], wanted: Mapping[int, int], room: Sequence[int]) -> Choice | None:
    """Return the smallest set of parts that is too small for the jobs confined to it; None if every job can have its
    share."""
    demand: dict[Choice, int] = {}
    for row, share in wanted.items():
        demand[homes[row]] = demand.get(homes[row], 0) + share
    sets = list(demand)
    for one in sets:
        sets += [both for other in demand if (both := one | other) not in sets][: max(0, MOST_SETS - len(sets))]
    size = {one: sum(room[part] for part in elements(one)) for one in sets}
    for one in sorted(sets, key=lambda one: (size[one], one.bit_count(), one)):
        if sum(share for choice, share in demand.items() if not choice & ~one) > size[one]:
            return one
    return None
