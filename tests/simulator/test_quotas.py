"""Quotas in simulations: the shares are those of the controller's scheduler, for users and for accounts."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticd.protocol.errors import UserError
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.policies import ELASTIC, load_policy
from elasticd.scheduler.policies.base import Shares
from elasticd.scheduler.quotas.dividing import Tenancy
from elasticd.scheduler.quotas.terms import Quota, Quotas
from elasticd.scheduler.view import ClusterView, JobTable, ReasonCode
from elasticd.simulator import simulate, traces
from elasticd.simulator.assign import assign
from elasticd.simulator.clusters import Cluster, ClusterFile, Servers, build
from elasticd.simulator.engine import Simulation
from elasticd.simulator.owners import By

OWNERS = ("ann", "bob", "cy")
QUOTAS = Quotas(users={"ann": Quota(gpus=4), "bob": Quota(gpus=2, most_gpus=3)}, default=Quota(gpus=1))
HEADER = "job,submit_s,duration_s,gpus,user,account,priority\n"


def trace_of(seed: int, jobs: int, priorities: bool = False) -> str:
    rng = random.Random(seed)
    rows, at = [], 0.0
    for number in range(jobs):
        at += rng.expovariate(1 / 20)
        priority = rng.choice(["low", "", "high"]) if priorities else ""
        rows.append(
            f"j{number},{at:.3f},{rng.uniform(20, 400):.3f},{rng.choice([1, 2, 4, 8])},{rng.choice(OWNERS)},x,{priority}\n"
        )
    return HEADER + "".join(rows)


class Recorded:
    """A policy that keeps the state of the random numbers at the beginning of each decision."""

    def __init__(self, name: str) -> None:
        self.policy = load_policy({"policy": name}, "test")
        self.name, self.needs_lengths = name, self.policy.needs_lengths
        self.state: Any = None

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        if self.state is None:
            self.state = rng.getstate()
        return self.policy.shares(jobs, gpus, now, rng)


def watched(path: Path, name: str, cluster: Cluster, packing: bool = False) -> list[Decision]:
    """Return all decisions of a simulation with quotas, each compared with that of `decide` for the same view."""
    load = assign(traces.load(path), sum(len(one.gpus) for one in cluster), None, 0).workload
    policy, seen = Recorded(name), list[Decision]()

    def watch(view: ClusterView, decision: Decision) -> None:
        owners = [load.owners[By.USER][number] for number in view.jobs.rows.tolist()]
        rng = random.Random()
        rng.setstate(policy.state or rng.getstate())
        again = decide(view, policy.policy, rng, packing, tenancy=Tenancy(QUOTAS, owners))
        policy.state = None
        assert decision.shares.tolist() == again.shares.tolist()
        has, useful = Counter[str](), Counter[str]()
        for row, owner in enumerate(owners):
            has[owner] += int(decision.shares[row])
            useful[owner] += int(view.jobs.max_gpus[row])
        for owner in has:
            quota = QUOTAS.own(owner)
            assert has[owner] <= (quota.most_gpus or view.total_gpus)
            if not packing and view.limit_of is None:
                assert has[owner] >= min(quota.gpus, useful[owner])
        seen.append(decision)

    outcome = Simulation(
        load, cluster, policy, packing=packing, watch=watch, tenancy=Tenancy(QUOTAS, load.owners[By.USER])
    ).run()
    assert not np.isnan(outcome.end_s).any()
    return seen


def cluster(*types: str) -> Cluster:
    return build(ClusterFile([Servers(gpus=4, gpu_type=name) for name in types or ("", "")]), "test")


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("policy", sorted(ELASTIC))
def test_a_simulation_divides_gpus_by_quota_as_the_controllers_scheduler_does(
    tmp_path: Path, policy: str, priorities: bool
) -> None:
    (tmp_path / "trace.csv").write_text(trace_of(1, 60, priorities))
    seen = watched(tmp_path / "trace.csv", policy, cluster())
    reasons = [decision.why(row) for decision in seen for row in np.flatnonzero(decision.shares == 0).tolist()]
    assert any(reason is not None and reason.code is ReasonCode.QUOTA for reason in reasons)


@pytest.mark.parametrize("policy", ["elastic", "max-min"])
def test_quotas_hold_with_packing(tmp_path: Path, policy: str) -> None:
    (tmp_path / "trace.csv").write_text(trace_of(2, 40))
    assert len(watched(tmp_path / "trace.csv", policy, cluster(), packing=True)) > 70


@pytest.mark.parametrize("policy", ["elastic", "max-min"])
def test_quotas_hold_where_servers_have_types(tmp_path: Path, policy: str) -> None:
    (tmp_path / "trace.csv").write_text(trace_of(3, 25).replace(",8,", ",4,"))
    assert len(watched(tmp_path / "trace.csv", policy, cluster("A100", "V100"))) > 40


# -- what a researcher sees: two users on four GPUs, whose jobs scale linearly

TWO = HEADER + "b,0,100,4,bob,x,\nb2,1,100,4,bob,x,\na,10,100,4,ann,y,\n"


def ends(found: Any) -> dict[str, float | None]:
    return dict(zip(found.jobs()["job"], found.jobs()["ended_s"], strict=True))


def run(text: str, tmp_path: Path, policy: Any = "max-min", **options: Any) -> Any:
    (tmp_path / "trace.csv").write_text(text)
    (found,) = simulate(tmp_path / "trace.csv", policy, servers=1, gpus_per_server=4, **options).values()
    return found


def test_an_owner_gets_its_guarantee_at_once_from_those_who_borrowed(tmp_path: Path) -> None:
    quotas = {"quotas": {"users": {"ann": {"gpus": 3}, "bob": {"gpus": 1}}}}
    told = run(TWO, tmp_path, quotas=quotas, explain="a").explain()
    assert (told["time_s"][0], told["gpus"][0]) == (10, 3)
    assert run(TWO, tmp_path, explain="a").explain()["gpus"][0] < 3
    before = run(TWO, tmp_path, quotas=quotas, explain="b").explain()
    assert max(before["gpus"]) >= 3, "bob borrows before ann has a job"


def test_a_bound_holds_though_gpus_are_idle(tmp_path: Path) -> None:
    quotas = {"quotas": {"users": {"bob": {"most_gpus": 2}}}}
    found = run(HEADER + "b,0,100,4,bob,x,\n", tmp_path, quotas=quotas)
    assert found.jobs()["ended_s"] == [200]


def test_a_job_beyond_the_bound_on_unfinished_jobs_is_refused_until_another_has_ended(tmp_path: Path) -> None:
    rows = "a,0,100,4,ann,x,\nb,10,100,4,ann,x,\nc,20,10,4,bob,x,\nd,150,100,4,ann,x,\n"
    for quotas in (
        {"users": {"ann": {"jobs": 1}}},
        {"groups": {"both": {"members": ["ann", "bob"], "jobs": 2}}, "users": {"ann": {"jobs": 1}}},
    ):
        for policy in ("fifo", "max-min", "elasticflow"):  # elasticflow admits jobs together
            found = run(HEADER + rows, tmp_path, policy, quotas={"quotas": quotas})
            assert [name for name, end_s in ends(found).items() if end_s is None] == ["b"], (quotas, policy)
            assert found.metrics.refused == 1
    found = run(
        HEADER + rows, tmp_path, quotas={"quotas": {"groups": {"both": {"members": ["ann", "bob"], "jobs": 1}}}}
    )
    assert [name for name, end_s in ends(found).items() if end_s is None] == ["b", "c"]


def test_each_account_counts_as_a_user_where_quotas_are_by_account(tmp_path: Path) -> None:
    quotas = {"quotas": {"users": {"y": {"gpus": 3}, "x": {"gpus": 1}}}}
    by_account = run(TWO, tmp_path, quotas=quotas, quotas_by="account", explain="a").explain()
    by_user = run(
        TWO.replace(",x,", ",-,").replace(",y,", ",-,").replace("bob", "x").replace("ann", "y"),
        tmp_path,
        quotas=quotas,
        explain="a",
    )
    assert by_account == by_user.explain()
    without_users = TWO.replace("user", "other")
    assert run(without_users, tmp_path, quotas=quotas, explain="a").explain() == by_account, "there are only accounts"


def test_priorities_order_the_jobs_of_each_owner_and_quotas_come_first(tmp_path: Path) -> None:
    rows = "b,0,100,4,bob,x,high\na,0,100,4,ann,x,low\na2,0,100,4,ann,x,normal\n"
    quotas = {"quotas": {"users": {"ann": {"gpus": 3}, "bob": {"gpus": 1}}}}
    alone = ends(run(HEADER + rows, tmp_path, "afs-l"))
    assert alone == {"b": 100, "a2": 200, "a": 300}
    found = ends(run(HEADER + rows, tmp_path, "afs-l", quotas=quotas))
    assert found["a2"] == pytest.approx(400 / 3), "ann's three GPUs go to her job of greater priority"
    assert found["b"] is not None
    assert found["b"] > 100


def test_a_policy_file_brings_its_own_quotas(tmp_path: Path) -> None:
    own = {"policy": "max-min", "quotas": {"users": {"bob": {"most_gpus": 1}}}}
    rows = HEADER + "b,0,100,4,bob,x,\n"
    assert run(rows, tmp_path, own).jobs()["ended_s"] == [400]
    everyone = {"quotas": {"users": {"bob": {"most_gpus": 2}}}}
    (tmp_path / "trace.csv").write_text(rows)
    both = simulate(tmp_path / "trace.csv", {"own": own, "plain": "max-min"}, servers=1, quotas=everyone)
    assert {label: one.jobs()["ended_s"] for label, one in both.items()} == {"own": [400], "plain": [200]}


def test_reservations_of_a_policy_file_are_said_to_be_left_out(tmp_path: Path) -> None:
    span = {"from": "2026-11-30T18:00+01:00", "to": "2026-11-30T20:00+01:00"}
    own = {"policy": "max-min", "reservations": [{"name": "course", "gpus": 4, **span}]}
    (tmp_path / "trace.csv").write_text(TWO)
    found = simulate(tmp_path / "trace.csv", own, servers=1)
    why = "--begin TIME says when the first job of the trace is submitted"
    assert found.remarks == (f"max-min: its reservations by time are not simulated: {why}",)


def test_guarantees_beyond_the_cluster_are_remarked(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TWO)
    quotas = {"quotas": {"users": {"bob": {"gpus": 8}}, "default": {"gpus": 2}}}
    found = simulate(tmp_path / "trace.csv", servers=1, quotas=quotas)
    assert found.remarks == ("quotas guarantee 10 GPUs, and the cluster has 4: guarantees shrink in proportion",)


def test_the_same_quotas_give_the_same_results_with_any_number_of_processes(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(trace_of(5, 40))
    quotas = {"quotas": {"users": {"ann": {"gpus": 4}}}}
    one, two = (
        simulate(tmp_path / "trace.csv", ["afs-p", "elastic"], servers=2, quotas=quotas, processes=processes)
        for processes in (1, 2)
    )
    assert {label: each.jobs() for label, each in one.items()} == {label: each.jobs() for label, each in two.items()}


# -- mistakes


@pytest.mark.parametrize(
    ("quotas", "said"),
    [
        (
            "quotas:\n  users:\n    ann: {gpus: 4}\n    eve: {gpus: 1}\n",
            "q.yaml: line 4: quotas.users.eve: {trace} has no job of user 'eve', only of bob, ann",
        ),
        (
            "quotas:\n  groups:\n    g: {members: [ann, eve]}\n",
            "q.yaml: line 3: quotas.groups.g.members[1]: {trace} has no job of user 'eve'",
        ),
        (
            "quotas:\n  users:\n    x: {gpus: 4}\n",
            "q.yaml: line 3: quotas.users.x: {trace} has no job of user 'x', only of bob, ann; there is such an account: ",
        ),
        (
            "quotas:\n  users:\n    ann: {gpus: four}\n",
            "q.yaml: line 3: quotas.users.ann.gpus: 'four': expected `int`, got `str`",
        ),
        (
            "quotas:\n  users:\n    103959: {gpus: 4}\n",
            "q.yaml: line 3: quotas.users.103959: is no text: a name stands in quotes if YAML",
        ),
        ("quotas:\n  users:\n    ann: {gpu: 4}\n", "q.yaml: line 3: quotas.users.ann.gpu: is unknown"),
        (
            "quotas:\n  users:\n    ann: {gpus: 4, most_gpus: 2}\n",
            "q.yaml: line 3: quotas.users.ann: most_gpus 2 is less than gpus 4",
        ),
        ("users:\n  ann: {gpus: 4}\n", "q.yaml: no field quotas; wanted is one like quotas: "),
        ("quotas: {users: {ann: {gpus: 1}}}\nquota: 1\n", "q.yaml: line 2: quota: is unknown"),
        ("quotas: [\n", "q.yaml: line 2, column 1: "),
        ("", "q.yaml: no field quotas"),
    ],
)
def test_a_mistake_in_a_file_of_quotas_is_named_by_line_and_field(tmp_path: Path, quotas: str, said: str) -> None:
    (tmp_path / "q.yaml").write_text(quotas)
    with pytest.raises(UserError) as refused:
        run(TWO, tmp_path, quotas=tmp_path / "q.yaml")
    wanted = said.replace("{trace}", str(tmp_path / "trace.csv"))
    assert str(refused.value).startswith(f"{tmp_path}/{wanted}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"quotas": {"quotas": {"users": {"eve": {"gpus": 1}}}}},
            "quotas: quotas.users.eve: .*trace.csv has no job of user 'eve'",
        ),
        ({"quotas_by": "team"}, "quotas_by: 'team' is not user or account"),
        (
            {"policy": "fifo", "quotas": {"quotas": {"users": {"ann": {"gpus": 1}}}}},
            "policy: quotas: gpus and most_gpus need a policy that may",
        ),
        ({"quotas": "nowhere.yaml"}, "nowhere.yaml: no such file"),
    ],
)
def test_bad_quotas_from_python_are_refused_in_one_sentence(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(TWO, tmp_path, options.pop("policy", "max-min"), **options)


QUOTA = {"quotas": {"default": {"gpus": 1}}}


def test_traces_in_which_jobs_have_no_owners_are_refused_with_quotas(tmp_path: Path) -> None:
    bare = "job,submit_s,duration_s,gpus\na,0,100,1\n"
    with pytest.raises(
        UserError, match=r"trace\.csv: line 1: quotas by user needs a column user; there are job, submit_s"
    ):
        run(bare, tmp_path, quotas=QUOTA)
    with pytest.raises(
        UserError, match=r"line 1: quotas by account needs a column account; .*; --account COLUMN names"
    ):
        run(bare, tmp_path, quotas=QUOTA, quotas_by="account")
    with pytest.raises(UserError, match="line 3, column user: quotas by user needs the user of each job; here is none"):
        run(HEADER + "a,0,9,1,ann,x,\nb,1,9,1,,x,\n", tmp_path, quotas=QUOTA)
    with pytest.raises(UserError, match="line 1: quotas by user needs a column user"):
        run(bare, tmp_path, {"policy": "elastic", "quotas": QUOTA["quotas"]})


def test_names_need_to_be_in_the_file_and_not_in_the_chosen_rows(tmp_path: Path) -> None:
    quotas = {"quotas": {"users": {"ann": {"gpus": 1}}}}
    assert run(TWO, tmp_path, quotas=quotas, where={"user": ["bob"]}).metrics.finished == 2


@pytest.mark.parametrize(
    "tenant",
    [
        {"users": {"ann": {"promised_gpu_hours": 0.1}}},
        {"groups": {"g": {"members": ["ann"], "promised_gpu_hours": 0.1}}},
    ],
)
def test_deadlines_beyond_an_owners_promised_hours_are_refused(tmp_path: Path, tenant: dict[str, Any]) -> None:
    """Each job needs 200 GPU-seconds, and 360 may be promised: after 100 s half of the first one's time is done."""
    rows = "a,0,200,1,ann,300\nb,10,200,1,ann,900\nc,20,200,1,bob,900\nd,100,200,1,ann,900\n"
    rows += "e,120,10,1,ann,\nf,130,200,1,ann,900\n"
    text = "job,submit_s,duration_s,gpus,user,deadline_s\n" + rows
    assert None not in run(text, tmp_path, "elasticflow").jobs()["ended_s"]
    found = run(text, tmp_path, "elasticflow", quotas={"quotas": tenant})
    assert [name for name, end_s in ends(found).items() if end_s is None] == ["b", "f"]
    assert found.metrics.missed_admitted == 0


# -- a published trace

PHILLY = Path(__file__).parents[3] / "shared" / "data" / "philly_jobs.csv.gz"


@pytest.mark.skipif(not PHILLY.exists(), reason="../shared/data is absent")
def test_equal_quotas_protect_phillys_light_virtual_clusters_from_a_heavy_one(tmp_path: Path) -> None:
    heavy, light = "0e4a51", "ed69ec"
    rows = [
        line
        for line in gzip.decompress(PHILLY.read_bytes()).decode().splitlines()
        if line[:2] == "vc" or line[:6] in (heavy, light)
    ]
    text = "\n".join(
        [rows[0], *[row for row in rows if row[:6] == heavy][:200], *[row for row in rows if row[:6] == light][:100]]
    )
    (tmp_path / "some.csv").write_text(text + "\n")
    options: dict[str, Any] = {"account": "vc", "servers": 4, "gpus_per_server": 4, "drop_larger": True}
    quotas = {"quotas": {"users": {heavy: {"gpus": 8}, light: {"gpus": 8}}}}
    found = {}
    for name, given in (("without", None), ("with", quotas)):
        rows_by = simulate(tmp_path / "some.csv", "max-min", quotas=given, **options)["max-min"].by("account")
        at = rows_by["account"].index(light)
        found[name] = rows_by["avg_jct_s"][at], rows_by["avg_finish_time_fairness"][at]
    assert found["with"][0] < found["without"][0]
    assert found["with"][1] < found["without"][1]
