"""The pure machines, and which tests are about each of them. The simulated cluster comes after these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "out" / "mutants"  # what has been found out, and tried


@dataclass(frozen=True)
class Machine:
    """Files of the product, and of tests. Patterns are relative to the repository; `left_out`: shells among the files."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def sources(self) -> list[str]:
        """Return the machine's source files, sorted."""
        found = {path.relative_to(ROOT).as_posix() for pattern in self.files for path in ROOT.glob(pattern)}
        return sorted(found.difference(self.left_out))

    def tried(self) -> list[str]:
        """Return the machine's test files, sorted. Raises ValueError for a pattern without a file."""
        found = {pattern: [path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)] for pattern in self.tests}
        if missing := [pattern for pattern, paths in found.items() if not paths]:
            raise ValueError(f"{self.name}: there is no test file {', '.join(missing)}")
        return sorted({path for paths in found.values() for path in paths})


_CONTROLLER = tuple(
    f"tests/controller/test_{name}.py"
    for name in (
        "absurd_jobs", "archive", "bounds", "cut_off", "divergence", "downtime", "drains", "explaining",
        "faults", "forgery", "gangs", "generations", "gpu_types", "growth", "hello_bounds", "hellos",
        "identity", "job_ends", "later_terms", "lending", "losses", "numbers", "oldest", "promises", "quotas",
        "recovery", "reign", "requests", "reservation", "reserved_times", "resizing", "restart", "saving",
        "server_clocks", "servers", "sight", "snapshots", "stall", "stopping", "stored", "throughput",
        "time_limits", "troubles", "type_speeds",
    )
)  # fmt: skip
_WORKER = tuple(
    f"tests/worker/test_{name}.py"
    for name in (
        "beginning", "builds", "campaign", "failures", "interlude", "limits", "membership", "mistakes",
        "preemption", "reporting", "script_end", "step_boundary", "unknown_lengths",
    )
)  # fmt: skip
_AGENT = ("tests/agent/test_machine.py", "tests/agent/test_starts.py", "tests/agent/test_stops.py")
_STORE = ("sqlite", "interface", "journal", "copying")
_SHELLS = ("elector", "follower", "store_requests")  # of an election: threads and sockets

MACHINES = (
    Machine("membership", ("worker/membership/*.py",), _WORKER),
    Machine("training", ("worker/training/*.py",), _WORKER),
    Machine("generations", ("controller/jobs/generations.py",), _CONTROLLER),
    Machine("inbound", ("controller/inbound/*.py",), _CONTROLLER),
    Machine("fence", ("agent/fence.py", "worker/state/fence.py"), ("tests/*/test_fence.py", *_AGENT)),
    Machine(
        "session", ("agent/session.py",), ("tests/agent/test_session.py", "tests/agent/test_endpoints.py", *_AGENT)
    ),
    Machine(
        "election",
        ("controller/election/*.py",),
        ("tests/controller/election/*.py",),
        left_out=tuple(f"controller/election/{name}.py" for name in _SHELLS),
    ),
    Machine(
        "store",
        tuple(f"controller/store/{name}.py" for name in _STORE),
        tuple(f"tests/store/test_{name}.py" for name in ("sqlite", "store", "copying", "conformance", "limits")),
    ),
    Machine(
        "turn",
        ("controller/turn.py",),
        tuple(
            f"tests/controller/test_{name}.py" for name in ("turn", "effects", "restart", "later_terms", "accounting")
        ),
    ),
)
