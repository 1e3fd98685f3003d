"""Container images of jobs: which names are allowed, and what else a job with an image must be like. Pure.

A name is that of podman and Docker, ``[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]``, and nothing else: no transport
(``docker-archive:``), no option, no space. It is one word of podman's command line on each server.
"""

from __future__ import annotations

import re

from .limits import MAX_IMAGE
from .model import JobSpec

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_IMAGE = re.compile(
    rf"{_PART}(?::[0-9]{{1,5}}(?=/))?(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
# Separators in podman's options, of which a mounted directory is a part
_SEPARATORS = (",", ":", '"', "\n")


def is_image(name: str) -> bool:
    """Return whether `name` is the name of an image."""
    return len(name) <= MAX_IMAGE and _IMAGE.fullmatch(name) is not None


def mountable(path: str) -> bool:
    """Return whether a directory can be mounted in a container, as far as its name tells."""
    return path.startswith("/") and path.strip("/") != "" and not any(each in path for each in _SEPARATORS)


def fault_of(spec: JobSpec) -> str:
    """Return why a job cannot run in its image, as a sentence; "": it can."""
    if not is_image(spec.image):
        return f"image: {spec.image[:80]!r} is not the name of an image, such as docker.io/pytorch/pytorch:2.9.0"
    if not mountable(spec.workdir):
        return (
            f"workdir: {spec.workdir[:200]!r} cannot be mounted in a container: it is the root, or has a comma, a colon "
            "or a quote in its name"
        )
    return ""
