"""Submission of jobs that continue from the checkpoint of another job: the choice of the checkpoint, and its checks.

The other job must be over, because two jobs must not both continue one state. Its files stay as they are. The new job
has the same number of virtual workers, the same seeds and the same type of GPUs. So its result equals, bit for bit,
that of a single job that was never ended. The worker that reads the checkpoint compares code and data.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...protocol.errors import RequestRefused, UserError
from ...protocol.model import JobPhase, JobSpec, ResumeFrom
from ...protocol.principals import Principal
from ..cluster import Cluster
from .authority import check_job
from .finding import find_job
from .pages import Fetched


def going_on(cluster: Cluster, who: Principal, spec: JobSpec, fetched: Fetched) -> JobSpec:
    """Return `spec` with the facts about the checkpoint that the job begins with.

    Raises UserError, RequestRefused, NotAllowed, and NotAtHand if the other job must be fetched from the archive.
    """
    resume = spec.resume
    if resume is None or not resume.job:
        return spec
    source = find_job(cluster, who, resume.job, fetched)
    check_job(who, source, "go on from")
    step = source.record.saved_step
    if not source.final:
        raise RequestRefused(
            f"{source.id} is not over: `elasticctl cancel {source.id}` ends it with its state saved, and "
            f"`elasticctl pause {source.id}` and `resume` go on with it as it is"
        )
    if step is None:
        raise RequestRefused(f"{source.id} has saved no checkpoint to go on from")
    if source.submission.account != who.account:
        raise RequestRefused(
            f"the checkpoints of {source.id} are of account {source.submission.account or 'root'} alone"
        )
    if spec.virtual_workers != source.spec.virtual_workers and not resume.any_code:
        raise UserError(
            f"virtual_workers: {source.id} has {source.spec.virtual_workers}, not {spec.virtual_workers}: the result depends on "
            "that (--with-new-code takes another number)"
        )
    alike = (source.spec.command, source.spec.max_steps, source.spec.until) == (
        spec.command,
        spec.max_steps,
        spec.until,
    )
    if source.record.phase is JobPhase.FINISHED and alike:
        raise RequestRefused(
            f"{source.id} has finished: give it more to do, such as another number of epochs in its command after --"
        )
    before, files = source.spec.resume, ResumeFrom(job=source.id, uid=source.uid)
    if before is not None and not source.record.saved_generation:
        files = before  # the other job continued from there itself, and has saved nothing since
    resume = replace(
        files,
        step=step,
        any_code=resume.any_code,
        gpu_name="" if resume.any_code else source.record.gpu_name,
        seeds=(before.seeds if before is not None else "") or f"{source.id} {source.uid}",
    )
    return replace(spec, resume=resume)


def told(spec: JobSpec) -> str:
    """Describe the checkpoint, as a suffix of the submission's event."""
    resume = spec.resume
    if resume is None:
        return ""
    return f", goes on after {resume.step + 1:,} steps of {resume.job or resume.directory}"
