"""Marks of forged reports (`forger`), by which the oracle recognizes one that is believed."""

from __future__ import annotations

from elasticd.controller.jobs.job import Job

PID, REASON = 666, "it is not so"


def is_believed(job: Job) -> bool:
    """Return whether a forgery has entered the controller's state of a job."""
    entries = (*job.workers, *job.record.past)
    told = any(status.pid == PID or status.note == REASON for status in job.statuses.values())
    return told or any(entry.pid == PID or REASON in entry.reason for entry in entries)
