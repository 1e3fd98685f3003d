"""Saving of jobs before `elasticctl down` stops a cluster: the jobs save their state, as in a preemption."""

from __future__ import annotations

from ..protocol.errors import ElasticError, PeerError
from ..protocol.messages import GetJobs, JobView, SaveAll, Saving
from . import render
from .client import Client
from .context import say
from .waiting import Waiting

KNOWN_WITHIN_S = 5.0  # time for a controller to answer
QUIET_S = 30.0  # no job gets GPUs for this long after the last request of `down`, which may be interrupted
SAVED_WITHIN_S = 3600.0  # longest time for saving a job's state


def save_jobs(address: str) -> list[str]:
    """Have the jobs of the cluster with the controller at `address` save their state. Returns each job's progress."""
    client = Client(address)
    try:
        running = [view.job for view in client.jobs(GetJobs()).jobs if view.share_gpus or view.workers]
        waiting = Waiting(f"{len(running)} job{'' if len(running) == 1 else 's'} to save their state", SAVED_WITHIN_S)
        while left := _ask(client):
            waiting.pause(", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else ""))
        return [_progress(view) for view in client.jobs(GetJobs()).jobs if view.job in running]
    except ElasticError as error:
        say(f"elasticctl: what jobs have done since their last checkpoints is not saved: {error}")
        return []
    finally:
        client.close()


def _ask(client: Client) -> tuple[str, ...]:
    answer = client.ask(SaveAll(for_s=QUIET_S), KNOWN_WITHIN_S)
    if not isinstance(answer, Saving):
        raise PeerError(f"the controller answered a SaveAll with a {type(answer).__name__}")
    return answer.jobs


def _progress(view: JobView) -> str:
    if not view.elastic:
        return f"{view.job}: it has not called elastic.join(), so nothing of it is saved"
    return f"{view.job}: {render.kept(view)}"
