"""Forecasts of starts: simulations that go on from a cluster's present state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import to_builtins

from elasticd.protocol.messages import Away, Outlook, OutlookJob
from elasticd.protocol.model import GpuRange, JobId, JobSpec, ServerId
from elasticd.scheduler.amounts import Amounts, Capacity, Need
from elasticd.scheduler.kinds import Demand, GpuSort
from elasticd.scheduler.length_statistics import NOTHING_ENDED, Ended
from elasticd.scheduler.policies import NAMES
from elasticd.scheduler.policies.expected_lengths import at_quantiles_s
from elasticd.scheduler.view import Kinds
from elasticd.simulator.costs import START_S
from elasticd.simulator.forecast import ALIKE, Starts, TooLong, starts, with_job

NOW = 1_790_000_000.0
GPUS = 4
LINEAR = tuple(float(gpus) for gpus in range(GPUS + 1))


def job(name: str, **facts: Any) -> OutlookJob:
    """A job with one to four GPUs that needs `left_s` seconds on one."""
    given: dict[str, Any] = {"min_gpus": 1, "max_gpus": GPUS, "requested_gpus": GPUS, "priority": 0, "curve": 0}
    given |= {"submitted_s": NOW - 100.0, "executed_s": 0.0, "attained_gpu_s": 0.0, "changes": 0, "done_s": 0.0}
    given |= {"left_s": 400.0, "share": 0, "fixed": False, "by_hand": None, "time_left_s": None}
    given |= facts
    given.setdefault("waiting_since_s", None if given["share"] else given["submitted_s"])
    return OutlookJob(job=JobId(name), **given)


def outlook(*jobs: OutlookJob, policy: str = "fifo", **more: Any) -> Outlook:
    servers = ((ServerId("s-0"), GPUS),)
    return Outlook(time_s=NOW, policy={"policy": policy}, servers=servers, jobs=jobs, speedups=(LINEAR,), **more)


def spec(least: int, most: int, **facts: Any) -> JobSpec:
    gpus = GpuRange(min=least, max=most)
    return JobSpec(name="new", command=("true",), workdir="/", gpus=gpus, virtual_workers=most, **facts)


def gang(name: str, gpus: int, **facts: Any) -> OutlookJob:
    return job(name, min_gpus=gpus, max_gpus=gpus, requested_gpus=gpus, fixed=True, **facts)


def test_a_job_starts_when_the_job_that_holds_the_gpus_ends() -> None:
    found = starts(outlook(job("a", share=4), job("b")), JobId("b"))
    assert found.after_s == pytest.approx([100.0] * len(found.after_s), abs=1e-6)


def test_jobs_go_on_from_what_they_have_done_and_with_the_gpus_that_they_have() -> None:
    held = job("a", share=2, max_gpus=2, requested_gpus=2, done_s=1000.0, left_s=200.0, executed_s=500.0)
    waiting = gang("b", 4)
    assert starts(outlook(held, waiting), JobId("b")).interval_s == pytest.approx((100.0, 100.0))


def test_a_gang_with_gpus_is_never_resized_whatever_the_policy() -> None:
    for policy in NAMES:
        held = gang("a", 3, share=3, left_s=300.0)
        later = gang("b", 2, left_s=200.0)
        found = starts(outlook(held, later, policy=policy), JobId("b"))
        assert found.interval_s == pytest.approx((100.0, 100.0)), policy


def test_a_share_that_was_set_by_hand_stays() -> None:
    held = job("a", share=4, by_hand=4, left_s=400.0)
    for policy in ("fifo", "afs-l", "elastic"):
        assert starts(outlook(held, job("b"), policy=policy), JobId("b")).interval_s[0] == pytest.approx(100.0)
    shared = starts(outlook(job("a", share=4), job("b"), policy="max-min"), JobId("b"))
    assert shared.interval_s[1] < 100.0  # without the hand the policy would share


def test_a_job_beyond_the_cluster_never_starts() -> None:
    found = starts(outlook(gang("big", GPUS + 1)), JobId("big"))
    assert found.interval_s == (math.inf, math.inf)


def test_without_a_server_no_job_starts() -> None:
    found = msgspec.structs.replace(outlook(job("a")), servers=())
    assert starts(found, JobId("a")).after_s == (math.inf,)


def test_a_time_limit_bounds_a_length_that_is_not_known() -> None:
    held = gang("a", 4, share=4, left_s=None, time_left_s=60.0)
    found = starts(outlook(held, gang("b", 4)), JobId("b"))
    assert found.interval_s[1] <= 60.0 + 1e-6
    free = starts(outlook(gang("a", 4, share=4, left_s=None), gang("b", 4)), JobId("b"))
    assert free.interval_s[1] > 600.0  # nothing is known of such jobs


def test_lengths_are_drawn_from_those_of_ended_jobs() -> None:
    ended = NOTHING_ENDED
    for _ in range(200):
        ended = ended.and_one(GPUS, 4000.0, math.nan)
    lengths = tuple(map(tuple, ended.lengths.tolist()))
    held = job("a", share=4, left_s=None, done_s=400.0)
    low_s, high_s = starts(outlook(held, job("b"), lengths=lengths), JobId("b")).interval_s
    assert 200.0 < low_s <= 900.0 <= high_s < 3500.0  # (4000 - 400) / 4 s, and the factor of all lengths


def test_jobs_that_arrive_later_count_where_they_go_first() -> None:
    held, waiting = job("a", share=4, left_s=4000.0), job("b", priority=-1)
    arrivals = {"arrivals": ((4, 4),) * 8 * ALIKE, "arrivals_s": 3600.0}  # eight groups
    ended = NOTHING_ENDED
    for _ in range(200):
        ended = ended.and_one(4, 1000.0, math.nan)
    lengths = tuple(map(tuple, ended.lengths.tolist()))
    alone = starts(outlook(held, waiting, policy="fifo"), JobId("b"))
    beside = starts(outlook(held, waiting, policy="fifo", lengths=lengths, **arrivals), JobId("b"))
    assert alone.interval_s[0] == pytest.approx(1000.0)
    assert beside.after_s[len(beside.after_s) // 2] > 1000.0 + START_S


def test_a_new_job_is_the_last_in_the_queue() -> None:
    before = outlook(job("a", share=4), job("b"), policy="fifo")
    after = with_job(before, JobId("new"), spec(1, 2))
    assert [each.job for each in after.jobs] == ["a", "b", "new"]
    assert starts(after, JobId("new")).interval_s == pytest.approx((200.0 + START_S, 200.0 + START_S))


def reservation(begins_s: float, ends_s: float, gpus: int) -> dict[str, Any]:
    begins, ends = (datetime.fromtimestamp(NOW + at, UTC).isoformat() for at in (begins_s, ends_s))
    return {"name": "course", "gpus": gpus, "from": begins, "to": ends}


def test_a_job_that_needs_reserved_gpus_starts_at_the_end_of_the_reservation() -> None:
    policy = {"policy": "max-min", "reservations": [reservation(-60.0, 500.0, 2)]}
    away = (Away(reservation="course", until_s=NOW + 500.0, gpus=(0, 1)),)
    found = msgspec.structs.replace(outlook(gang("a", 4)), policy=policy, away=away)
    assert starts(found, JobId("a")).interval_s == pytest.approx((500.0, 500.0))
    assert starts(msgspec.structs.replace(found, jobs=(job("a"),)), JobId("a")).interval_s == (0.0, 0.0)


def test_a_reservation_that_comes_delays_what_does_not_start_before_it() -> None:
    policy = {"policy": "fifo", "reservations": [reservation(50.0, 500.0, 4)]}
    held = job("a", share=4, left_s=400.0, held=(0, 1, 2, 3))
    found = msgspec.structs.replace(outlook(held, job("b")), policy=policy)
    (after_s,) = set(starts(found, JobId("b")).after_s)
    assert after_s > 500.0, "its GPUs are reserved after 50 s, and `a` has the rest of its work before it"
    sooner = msgspec.structs.replace(found, policy={"policy": "fifo", "reservations": [reservation(150.0, 500.0, 4)]})
    assert starts(sooner, JobId("b")).interval_s == pytest.approx((100.0, 100.0))


def test_a_gang_keeps_its_gpus_and_a_reservation_takes_them_when_it_ends() -> None:
    policy = {"policy": "fifo", "reservations": [reservation(50.0, 500.0, 4)]}
    held = gang("a", 4, share=4, left_s=400.0, held=(0, 1, 2, 3))
    found = msgspec.structs.replace(outlook(held, job("b")), policy=policy)
    assert starts(found, JobId("b")).interval_s == pytest.approx((500.0, 500.0))


def test_lent_gpus_come_back_at_the_end_of_their_loan() -> None:
    away = (Away(reservation="", until_s=NOW + 300.0, gpus=(2, 3)),)
    found = msgspec.structs.replace(outlook(gang("a", 3)), away=away)
    assert starts(found, JobId("a")).interval_s == pytest.approx((300.0, 300.0))


QUOTAS = {"users": {"alice": {"gpus": 2, "most_gpus": 2}, "bob": {"gpus": 2}}}


def test_quotas_decide_whose_job_starts_first() -> None:
    held = [gang("a", 2, share=2, left_s=4000.0, user="alice"), gang("b", 2, share=2, user="bob")]
    free = outlook(*held, gang("c", 2, user="alice"), gang("d", 2, user="bob"), policy="max-min")
    bounded = msgspec.structs.replace(free, policy={"policy": "max-min", "quotas": QUOTAS})
    assert starts(free, JobId("c")).interval_s == pytest.approx((200.0, 200.0))
    assert starts(free, JobId("d")).interval_s[0] > 200.0
    assert starts(bounded, JobId("d")).interval_s == pytest.approx((200.0, 200.0)), "c is beyond its user's quota"
    assert starts(bounded, JobId("c")).interval_s == pytest.approx((2000.0, 2000.0))
    new = with_job(bounded, JobId("new"), spec(1, 1, user="alice"))
    assert starts(new, JobId("new")).interval_s[0] >= 2000.0


def test_a_gang_does_not_begin_on_gpus_that_quotas_guarantee_to_others() -> None:
    """It could not give them back (`scheduler.quotas.pinned`)."""
    policy = {"policy": "max-min", "quotas": {"users": {"alice": {"gpus": 2}, "bob": {"gpus": 2}}}}
    held = job("a", share=4, left_s=400.0, user="alice", held=(0, 1, 2, 3))
    beyond = msgspec.structs.replace(outlook(held, gang("b", 3, user="alice")), policy=policy)
    assert starts(beyond, JobId("b")).interval_s == (math.inf, math.inf)
    within = msgspec.structs.replace(outlook(held, gang("b", 2, user="alice")), policy=policy)
    assert starts(within, JobId("b")).interval_s[1] <= 100.0


def test_later_jobs_of_a_user_stay_within_the_users_quota() -> None:
    held, waiting = gang("a", 4, share=4, left_s=4000.0), gang("b", 4, priority=-1, user="bob")
    arrivals = {"arrivals": ((1, 4),) * 8, "arrivals_s": 3600.0, "arrival_users": ("alice",) * 8}
    found = outlook(held, waiting, policy="afs-p", **arrivals)
    none = {"users": {"alice": {"most_gpus": 0}, "bob": {"gpus": 4}}}
    bounded = msgspec.structs.replace(found, policy={"policy": "afs-p", "quotas": none})
    assert starts(found, JobId("b")).interval_s[1] > 1000.0
    assert starts(bounded, JobId("b")).interval_s == pytest.approx((1000.0, 1000.0))


A, B = GpuSort("A", 40 << 30), GpuSort("B", 80 << 30)


def typed(*jobs: OutlookJob, demands: Sequence[Demand], kinds: Sequence[Kinds]) -> Outlook:
    servers = tuple((ServerId(f"s-{at}"), sum(count for _, count in each.gpus)) for at, each in enumerate(kinds))
    found = outlook(*jobs, policy="max-min")
    documents = {"demands": tuple(map(to_builtins, demands)), "kinds": tuple(map(to_builtins, kinds))}
    return msgspec.structs.replace(found, servers=servers, **documents)


def test_a_job_waits_for_gpus_of_the_type_that_it_may_use() -> None:
    kinds = [Kinds(((A, 2),)), Kinds(((B, 2),))]
    held = [
        gang("a", 2, share=2, left_s=4000.0, demand=1, held=(0, 1)),
        gang("b", 2, share=2, left_s=400.0, demand=0, held=(2, 3)),
    ]
    demands = [Demand(), Demand(types=("A",)), Demand(memory_bytes=60 << 30)]
    for demand, at_s in ((0, 200.0), (1, 2000.0), (2, 200.0)):
        found = typed(*held, gang("c", 2, demand=demand), demands=demands, kinds=kinds)
        assert starts(found, JobId("c")).interval_s == pytest.approx((at_s, at_s)), demand
    never = typed(*held, gang("c", 3, demand=0), demands=demands, kinds=kinds)
    assert starts(never, JobId("c")).interval_s == (math.inf, math.inf), "a job stays on one type"


def test_a_new_job_may_be_the_first_one_that_cannot_use_all_gpus() -> None:
    held = gang("a", 2, share=2, left_s=4000.0, held=(0, 1))
    before = typed(held, demands=[Demand()], kinds=[Kinds(((A, 4),)), Kinds(((A, 2),))])
    assert starts(with_job(before, JobId("new"), spec(4, 4)), JobId("new")).interval_s == (0.0, 0.0)
    four = spec(4, 4, gpus_per_server=4)
    assert starts(with_job(before, JobId("new"), four), JobId("new")).interval_s == pytest.approx((2000.0, 2000.0))
    other = with_job(before, JobId("new"), spec(1, 1, gpu_types=("B",)))
    assert starts(other, JobId("new")).interval_s == (math.inf, math.inf)


def test_a_job_waits_for_cores_of_its_servers() -> None:
    cores = Capacity(Amounts(millicores=8000))
    kinds = [Kinds(((A, 4),), cores)]
    demands = [Demand(need=Need(Amounts(millicores=4000))), Demand()]
    held = [
        gang("a", 1, share=1, left_s=100.0, demand=0, held=(0,)),
        gang("b", 1, share=1, left_s=300.0, demand=0, held=(1,)),
    ]
    needs = starts(typed(*held, gang("c", 1, demand=0), demands=demands, kinds=kinds), JobId("c"))
    other = starts(typed(*held, gang("c", 1, demand=1), demands=demands, kinds=kinds), JobId("c"))
    assert (needs.interval_s, other.interval_s) == (pytest.approx((100.0, 100.0)), (0.0, 0.0))


def test_jobs_with_deadlines_get_what_these_need() -> None:
    due = job("due", left_s=3000.0, deadline_s=NOW + 900.0, promised=True)
    held, waiting = job("a", share=4, left_s=4000.0), gang("c", 3, left_s=400.0)
    at_s = {}
    for policy in ("max-min", "fifo"):
        for deadline_s in (due.deadline_s, None):
            jobs = held, msgspec.structs.replace(due, deadline_s=deadline_s, promised=deadline_s is not None), waiting
            at_s[policy, deadline_s is not None] = starts(outlook(*jobs, policy=policy), JobId("c")).interval_s[0]
    assert at_s["max-min", False] == pytest.approx(1500.0, abs=10.0), "when the job ends that has half of the GPUs"
    assert at_s["max-min", True] == pytest.approx(750.0, abs=20.0), "that job needs all GPUs until then"
    assert at_s["fifo", False] == at_s["fifo", True], "a policy that keeps no deadlines"


def test_a_job_that_the_outlook_does_not_have_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        starts(outlook(job("a")), JobId("b"))


def test_a_forecast_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticd.simulator.forecast.MOST_S", -1.0)
    with pytest.raises(TooLong, match="2 jobs"):
        starts(outlook(job("a", share=4), job("b")), JobId("b"))


def test_the_interval_holds_eight_of_ten_runs() -> None:
    found = Starts(tuple(float(number) for number in range(101)))
    assert found.interval_s == pytest.approx((10.0, 90.0))


def test_quantiles_of_remaining_work_ascend_and_agree_with_the_ended_jobs() -> None:
    ended = NOTHING_ENDED
    for number in range(1000):
        ended = ended.and_one(1, 100.0 * 1.01**number if number < 400 else 500.0, math.nan)
    count = 500
    one = np.ones(count, dtype=np.int64)
    found = at_quantiles_s(
        Ended(ended.lengths, ended.errors), one, np.full(count, 300.0), (np.arange(count) + 0.5) / count
    )
    assert (np.diff(found) >= 0).all()
    assert (found > 0).all()
    above = np.array([100.0 * 1.01**number for number in range(400)])
    longer = [*above[above > 300.0].tolist(), *[500.0] * 600]
    assert float(np.median(found)) + 300.0 == pytest.approx(float(np.median(longer)), rel=0.35)
