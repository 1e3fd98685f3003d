"""torch's settings for a job's determinism, checked in separate processes since they are global."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import Determinism
from elasticd.worker import warm
from elasticd.worker.determinism import check_repeatable, described

SCRIPT = """
import os, sys, torch
import elasticd as elastic
{before}
run = elastic.join(threads={threads})
pool, unpool = torch.nn.MaxPool2d(2, return_indices=True), torch.nn.MaxUnpool2d(2)
model = torch.nn.Linear(4, 4)
data = torch.utils.data.TensorDataset(torch.randn(4, 1, 4, 4))
model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4)
print(torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory)
for _ in run.epochs(1):
    for (x,) in batches:
        {inside}
        y = unpool(*pool(model(x)))
        {behind}
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print("trained", os.environ["CUBLAS_WORKSPACE_CONFIG"])
"""


def ran(
    threads: int = 1, before: str = "", inside: str = "", behind: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(threads=threads, before=before, inside=inside, behind=behind)
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_fused_sgd_that_reads_memory_before_it_is_written_is_refused(kind: torch.dtype) -> None:
    options: dict[str, Any] = {"momentum": 0.9}
    parameter = torch.nn.Parameter(torch.zeros(4, 4, dtype=kind))
    optimizer = torch.optim.SGD([parameter], lr=0.1, fused=True, **options)
    with pytest.raises(UserError, match="gives other bits in each run on a processor: leave fused=True out"):
        check_repeatable(Determinism.ELASTIC, [optimizer])
    check_repeatable(Determinism.NONE, [optimizer])
    for others in (options, {"fused": True}):
        check_repeatable(Determinism.ELASTIC, [torch.optim.SGD([parameter], lr=0.1, **others)])
    wide = torch.nn.Parameter(torch.zeros(4, 4))
    check_repeatable(Determinism.ELASTIC, [torch.optim.SGD([wide], lr=0.1, fused=True, **options)])


@pytest.mark.cluster
def test_one_thread_of_a_processor_repeats_what_torch_would_refuse_and_no_memory_is_filled() -> None:
    done = ran()
    assert done.stdout.splitlines() == ["True False", "trained :4096:8"], done.stderr


@pytest.mark.cluster
def test_an_operation_that_may_differ_is_refused_by_name_with_what_to_do() -> None:
    done = ran(threads=2)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("elasticctl: max_unpooling2d_forward_out has no deterministic algorithm here")
    assert "`determinism: none`" in last


@pytest.mark.cluster
def test_a_script_may_allow_one_operation() -> None:
    done = ran(
        threads=2,
        inside="torch.use_deterministic_algorithms(True, warn_only=True)",
        behind="torch.use_deterministic_algorithms(True)",
        CUBLAS_WORKSPACE_CONFIG=":16:8",
    )
    assert done.stdout.splitlines()[-1] == "trained :16:8", done.stderr


@pytest.mark.cluster
def test_a_script_that_has_asked_for_filled_memory_keeps_it() -> None:
    assert ran(before="torch.use_deterministic_algorithms(True)").stdout.splitlines()[0] == "True True"


@pytest.mark.cluster
@pytest.mark.parametrize("determinism", Determinism)
def test_on_a_gpu_torch_raises_errors_unless_the_job_wants_speed_alone(determinism: Determinism) -> None:
    script = (
        "import torch; from elasticd.protocol.model import Determinism; from elasticd.worker.determinism import ask_for; "
        f"ask_for(Determinism({determinism.value!r}), torch.device('cuda')); "
        "print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(determinism is not Determinism.NONE), "False"]


def test_a_collective_without_a_process_group_has_its_reason_and_what_to_write() -> None:
    with pytest.raises(ValueError) as without:  # noqa: PT011
        torch.distributed.all_gather([torch.zeros(1)], torch.zeros(1))
    assert "the workers of an elastic job come and go" in described(without.value)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        assert name not in os.environ
    with pytest.raises(ValueError) as making:  # noqa: PT011
        torch.distributed.init_process_group("gloo")
    assert "run.gather(tensor) with prepare(…, gathers=True)" in described(making.value)


def test_only_what_torch_refuses_has_a_remedy() -> None:
    refused = RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set")
    assert described(refused).startswith("RuntimeError: cumsum_cuda_kernel has no deterministic algorithm here")
    assert described(RuntimeError("out of memory")) == "RuntimeError: out of memory"
    assert described(ValueError("x does not have a deterministic implementation")).startswith("ValueError: x does not")


def test_warming_a_device_up_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    warm.on_device(torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())
