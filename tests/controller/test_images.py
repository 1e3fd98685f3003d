"""Names of container images, and jobs that may not have one."""

from __future__ import annotations

import pytest

from elasticd.controller.requests.validation import refusal
from elasticd.protocol.images import is_image
from elasticd.protocol.model import GpuRange, JobSpec


@pytest.mark.parametrize(
    "name",
    [
        "pytorch", "docker.io/pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime", "nvcr.io/nvidia/pytorch:24.01-py3",
        "localhost:5000/a/b:1", "localhost/x:1", f"a/b@sha256:{'0' * 64}", f"r:5000/a/b:t@sha256:{'a' * 64}",
    ],
)  # fmt: skip
def test_names_of_images_are_taken(name: str) -> None:
    assert is_image(name)


@pytest.mark.parametrize(
    "name",
    [
        "", "-v", "--privileged", "a b", "a\nb", "a\0", "docker-archive:/etc/shadow", "oci:/tmp/x", "dir:/etc", "/etc", "../x",
        "a//b", "a:b:c", "a@b", "a@sha256:00", "docker://a", "x" * 600, "a/-b", "$HOME", "a;b", "ä",
    ],
)  # fmt: skip
def test_only_names_of_images_are_images(name: str) -> None:
    assert not is_image(name)
    if name:
        assert refusal(_spec(image=name)).startswith("image: ")


@pytest.mark.parametrize("workdir", ["/", "//", "/a,b", "/a:b", '/a"b'])
def test_a_directory_that_cannot_be_mounted_is_refused(workdir: str) -> None:
    assert "cannot be mounted in a container" in refusal(_spec(image="a", workdir=workdir))


def _spec(image: str, workdir: str = "/home/alice") -> JobSpec:
    gpus = GpuRange(min=1, max=1)
    return JobSpec(name="job", command=("true",), gpus=gpus, virtual_workers=1, workdir=workdir, image=image)
