"""A history of a simulated cluster: its planned events, periodic checks, and its end."""

from __future__ import annotations

from collections.abc import Mapping

from elasticd.agent.machine import MAX_FORGOTTEN, MAX_ORDERS
from elasticd.controller.reconcile.what_if import outcome
from elasticd.protocol.model import JobId
from elasticd.protocol.times import START_PATIENCE_S
from elasticd.worker.membership.machine import MAX_EARLY

from . import bounds, reasons
from .cluster import Cluster
from .faults import strike
from .operations import How
from .plan import Fault, Plan, Weather
from .process import State
from .violation import Violation

# Virtual time within which everything ends once the weather has cleared: the longest time limit of a job, and its other steps.
QUIET_S = 2400.0
LOOK_EVERY_S = 10.0
WELL_EVERY_S = 10.0
EXPLAINED_EVERY_S = 60.0
HANGING_S = START_PATIENCE_S + 10.0  # after which a hanging start is given up
SIZES_EVERY_S = 60.0
# other tables: MOST
MOST_OF_AN_AGENT = {"orders": MAX_ORDERS, "ends that are forgotten": MAX_FORGOTTEN, "processes": 64}
MOST_OF_A_WORKER = {"early words": MAX_EARLY}


class World(Cluster):
    """One history's cluster. `run` advances time."""

    def __init__(
        self, plan: Plan, tell: bool = False, strikes: Mapping[int, How] | None = None, shared: bool = False
    ) -> None:
        super().__init__(plan, tell, strikes, shared)
        self._explained_at = 0.0
        self.after(0.0, self.controller.boot)
        for agent in self.agents:
            self.after(0.1, agent.boot)
        for job in plan.jobs:
            self.after(job.at, self.users.submit, job)
        self.after(SIZES_EVERY_S, self._look_at_sizes)
        self.after(WELL_EVERY_S, self._look_who_is_well)
        for number, fault in enumerate(plan.faults):
            self.after(fault.at, self.due, number, fault)

    def strike(self, number: int, fault: Fault, job: JobId | None = None) -> None:
        strike(self, number, fault, job)

    def _look_at_sizes(self) -> None:
        if self.controller.state is State.RUNNING:
            bounds.sizes(self.controller.machine.cluster, self.plan.servers)
            self.oracle.forgeries(self.controller.machine.cluster, self.forgers)
        for agent in self.agents:
            if agent.state is State.RUNNING:
                bounds.bounded(f"agent {agent.name}", agent.sizes, MOST_OF_AN_AGENT)
        for worker in self.workers():
            bounds.bounded(worker.name, worker.sizes, MOST_OF_A_WORKER)
        self.after(SIZES_EVERY_S, self._look_at_sizes)

    def _look_who_is_well(self) -> None:
        self.after(WELL_EVERY_S, self._look_who_is_well)
        if not self.controller.has_reigned:
            return
        self.cordons.look()
        self.oracle.well({worker.name for worker in self.workers() if worker.well})
        running = self.controller.state is State.RUNNING and not self.controller.trouble
        cluster = self.controller.machine.cluster
        if running and not cluster.servers.awaited:
            self.oracle.deadlines(self.controller.now, cluster.jobs.values())
            decided = outcome(cluster, self.controller.now)
            self.oracle.startable(reasons.startable(decided) if decided is not None else ())
            if decided is not None:
                reasons.look(cluster, decided)
            if self.timeline.now >= self._explained_at + EXPLAINED_EVERY_S:
                self._explained_at = self.timeline.now
                reasons.explain(cluster, self.controller.now)
        else:
            self.oracle.startable(())
            self.controller.heard.clear()  # users ask again
        self.oracle.asked({name: at for name, at in self.controller.heard.items() if name in self.users.waiting})
        for agent in self.agents:
            if agent.state is State.RUNNING:
                self.oracle.start_hangs(agent.name, agent.hanging(HANGING_S), agent.sizes["starts that hang"])
            hosts = frozenset({agent.host, self.controller.host})
            session = cluster.servers.sessions.get(agent.server.server)
            away = not running or agent.state is not State.RUNNING or self.network.cut_among(hosts)
            away = (
                away or bool(self.twins) or agent.server.server in cluster.servers.foreign or agent.name in self.removed
            )
            stands = session is not None and session.alive and session.name == agent.session
            self.oracle.session(agent.name, away or stands)
            if not away and stands:
                self.oracle.in_session(agent.name, agent.workers)

    # -- the end

    def clear(self) -> None:
        """End all faults: everything broken is repaired, and nothing breaks any more."""
        self.story.say("the weather clears")
        self.disarm()
        self.network.weather, self.network.peer_loss = Weather(contract=self.network.weather.contract), 0.0
        self.network.heal_all()
        self.mend_store()
        self.disk.crash_next = self.disk.tear_next = None
        for agent in self.agents:
            agent.empty_disk()
            agent.close_black_hole()
            agent.show_storage()
            agent.free_storage()
            agent.slow_down(1.0)
            agent.power_on()
            agent.go_on(agent.life)
        for twin in self.twins:
            twin.power_off()
        for zombie in self.zombies:
            zombie.die()
        for worker in self.workers():
            worker.go_on(worker.life)
        self.controller.boot()
        self.controller.go_on(self.controller.life)
        self.oracle.all_disturbed()
        self.operator_is_called()

    def left_to_do(self) -> list[str]:
        """Descriptions of all that has not ended as it should."""
        if self.controller.state is not State.RUNNING:
            return ["the controller does not run"]
        gpus = sum(len(agent.server.gpus) for agent in self.agents)
        left = []
        known = self.controller.machine.cluster.jobs
        for job in self.oracle.submitted().values():
            reason = known[job].waiting_reason if job in known else ""
            if wrong := self.oracle.wrong_end(job, gpus, reason):
                left.append(wrong)
        left += [f"{worker.name} runs on {worker.host}" for worker in self.workers()]
        sessions = self.controller.machine.cluster.servers.sessions
        for agent in self.agents:
            session = sessions.get(agent.server.server)
            if session is None or not session.alive:
                left.append(f"server {agent.name} is not back")
        left += [f"{name} is not answered" for name in self.users.waiting]
        return left

    def run_until_quiet(self) -> None:
        """Advance time until all jobs are done. Raises Violation after a limit."""
        until = self.timeline.now + QUIET_S
        while left := self.left_to_do():
            if self.timeline.now >= until:
                raise Violation("everything ends once the weather has cleared", "; ".join(left[:6]))
            self.run(LOOK_EVERY_S)
