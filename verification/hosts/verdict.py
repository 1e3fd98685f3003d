"""Checks of the recorded hour; the module `hour` lists them."""

from __future__ import annotations

import collections
import importlib.util
import json
import statistics
from pathlib import Path
from typing import Any

from .room import DIRECTORY, SCRIPT, USERS, Room


def judge(room: Room, data: Path, audit: Path) -> dict[str, str]:
    """Check everything after the end of the hour. Returns the figures for the page."""
    fault, jobs = room.recording.fault, list(room.jobs.values())
    views = {view["spec"]["name"]: view for view in (room.asks("status --all") or {"jobs": []})["jobs"]}
    ends, compared = collections.Counter[str](), judge_ends(room, views, data)
    for name in sorted(views.keys() - room.jobs.keys()):
        fault(f"{name} is a job that nobody has submitted")
    for view in views.values():
        ends[view["phase"]] += 1
    for host in room.lab.hosts.values():
        if left := host.shell("pgrep -af train_small[.]py", check=False).stdout.strip():
            fault(f"processes of jobs are left on {host.name}: {left}")
        if logs := host.shell(f"grep -rl --include=*.log Traceback ~/.local/state {DIRECTORY}", check=False).stdout:
            fault(f"tracebacks in logs of {host.name}: {logs.strip()}")
    refused = judge_audit(room, audit)
    resizes = [resize for view in views.values() for resize in view["resizes"] if resize["workers_before"]]
    ordered = [paused_s(resize) for resize in resizes if not resize["recovery"]]
    recovered = [paused_s(resize) for resize in resizes if resize["recovery"]]
    return {
        "jobs submitted": f"{len(views)}, of which {', '.join(f'{n} {phase}' for phase, n in sorted(ends.items()))}",
        "submissions without an answer": str(sum(not job.id for job in jobs)),
        "results compared bit for bit": str(compared),
        **{kind: str(count) for kind, count in sorted(room.recording.counts.items()) if kind != "unanswered"},
        "resizes": spread(ordered),
        "resizes after a loss": spread(recovered),
        "restarts from a checkpoint": str(sum(view["restarts"] for view in views.values())),
        "attempts refused": f"{sum(room.attempts.values())}, and {refused} in the audit log",
        "commands without an answer": str(room.recording.counts["unanswered"]),
    }


def judge_ends(room: Room, views: dict[str, Any], data: Path) -> int:
    """Check that each job has ended as expected, with the expected result. Returns the number of compared results."""
    smoke, references, compared = _smoke(), dict[tuple[int, int], Any](), 0
    for job in room.jobs.values():
        if (view := views.get(job.name)) is None:
            if job.id:
                room.recording.fault(f"{job.id} is not known any more")
            continue
        end = view["phase"]
        may = ["cancelled"] if job.cancelled else ["failed" if job.fails else "finished"]
        if end not in [*may, *(["cancelled"] if job.perhaps_cancelled else [])]:
            room.recording.fault(f"{job.name} of {job.owner} is {end}, not {may[0]}: {view['reason']}")
        elif end == "finished":
            kind = (job.epochs, job.virtual)
            if kind not in references:
                output = data / f"alone-{job.epochs}-{job.virtual}.pt"
                references[kind] = smoke.alone(output, "--epochs", str(job.epochs), virtual_workers=job.virtual)
            try:
                smoke.assert_same_bits(smoke.load(data / f"{job.name}.pt"), references[kind])
            except (AssertionError, OSError) as error:
                room.recording.fault(f"the result of {job.name} is not that of the script alone: {error}")
            compared += 1
    return compared


def judge_audit(room: Room, audit: Path) -> int:
    """Check that no act on another user's job succeeded, and that each refused attempt is logged. Returns their number."""
    lines = [json.loads(line) for path in audit.parent.glob(f"{audit.name}*") for line in path.read_text().splitlines()]
    owner = {job.id: job.owner for job in room.jobs.values() if job.id}
    refused: collections.Counter[tuple[str, str]] = collections.Counter()
    seen: set[str] = set()  # ids of requests: an unanswered client repeats its request, and each repetition is logged
    for line in lines:
        role, _, who = line["who"].partition(":")
        if not line["done"]:
            refused[who, line["act"]] += line["request"] not in seen
            seen.add(line["request"])
            if who not in USERS:
                room.recording.fault(f"refused, though nobody tried what he may not: {line}")
        elif role == "user" and owner.get(line["of"], who) != who:
            room.recording.fault(f"{who} has touched {owner[line['of']]}'s job: {line}")
    for (who, act), tried in room.attempts.items():
        if refused[who, act] < tried:
            room.recording.fault(f"{who} was refused `{act}` {tried} times, {refused[who, act]} are in the audit log")
    return refused.total()


def paused_s(resize: dict[str, Any]) -> float:
    """Return the pause in training (s), as `protocol.model.Resize.paused_s`."""
    return max(0.0, float(resize["longest_gap_s"] - max(resize["median_step_s"], resize["median_step_after_s"])))


def spread(pauses: list[float]) -> str:
    if not pauses:
        return "none"
    return f"{len(pauses)}; pause: median {statistics.median(pauses):.2f} s, longest {max(pauses):.2f} s"


def _smoke() -> Any:
    """Import the helpers of the smoke test that compare results."""
    spec = importlib.util.spec_from_file_location("smoke", SCRIPT.with_name("test_smoke.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
