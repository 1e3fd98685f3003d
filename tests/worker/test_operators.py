"""Operators without one algorithm on all hardware are named before the first update (EasyScale 3.3, D2)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from elasticd.protocol.errors import UserError
from elasticd.protocol.variables import PINNED
from elasticd.worker.determinism import pin
from elasticd.worker.events import OperatorsTraced
from elasticd.worker.operators import Scan, described

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
X = torch.ones(4, 8)
CUSTOM = torch.library.Library("elasticd_test", "DEF")  # type: ignore[no-untyped-call]
CUSTOM.define("twice(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
CUSTOM.impl("twice", lambda x: x * 2, "CPU")  # type: ignore[no-untyped-call]


def scanned(device: torch.device, body: Callable[[], Any]) -> list[OperatorsTraced]:
    """What a worker on this device tells of a loop body; the operators themselves are computed here."""
    told: list[OperatorsTraced] = []
    scan = Scan(True, device, told.append)
    for _ in range(2):
        scan.body_begins()
        try:
            body()
        finally:
            scan.body_ends()
    return told


def trained() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.LayerNorm(3), torch.nn.Dropout(0.5))
    model(X).square().sum().backward()


def test_on_processors_a_usual_model_holds_and_is_traced_once() -> None:
    (told,) = scanned(CPU, trained)
    assert told.agnostic
    assert "have one algorithm each on all processors" in told.text


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda: functional.linear(X.bfloat16(), X.bfloat16()), "in 16 bits has no algorithm"),
        (lambda: X**0.5, "pow has no algorithm"),
        (lambda: torch.ops.elasticd_test.twice(X), "elasticd_test::twice has no algorithm"),
        (lambda: (torch.linalg.lstsq(torch.eye(3), torch.eye(3)), X**0.5), "linalg_lstsq and pow have no algorithm"),
    ],
)
def test_on_processors_an_operator_without_one_algorithm_is_refused(body: Callable[[], Any], named: str) -> None:
    with pytest.raises(UserError, match="`determinism: heterogeneous` does not hold for this model: ") as refused:
        scanned(CPU, body)
    assert named in str(refused.value)


def test_on_gpus_products_and_random_numbers_keep_a_job_on_one_type() -> None:
    (told,) = scanned(CUDA, trained)
    assert not told.agnostic
    for name in ("addmm", "native_layer_norm"):
        assert name in told.text
    assert told.text.endswith("GPUs. The job stays on the type on which it began")


def test_on_gpus_copies_and_arithmetic_hold() -> None:
    (told,) = scanned(CUDA, lambda: (X[:2].relu() * 2 + X[2:]).t().sqrt())
    assert told.agnostic


def test_other_jobs_are_not_traced() -> None:
    told: list[OperatorsTraced] = []
    scan = Scan(False, CPU, told.append)
    scan.body_begins()
    X**0.5
    scan.body_ends()
    assert told == []


def test_many_operators_are_counted() -> None:
    assert described(["a"]) == "a"
    assert described(["a", "b", "c"]) == "a, b and c"
    assert described("abcdefgh") == "a, b, c, d, e and 3 more"


def test_a_process_started_without_the_variables_is_refused() -> None:
    pinned = dict(PINNED)
    with pytest.raises(UserError, match="needs ATEN_CPU_CAPABILITY=default, and it is 'avx2'"):
        pin({**pinned, "ATEN_CPU_CAPABILITY": "avx2"})
    del pinned["MKL_CBWR"]
    with pytest.raises(UserError, match="needs MKL_CBWR=COMPATIBLE, and it is 'not set'"):
        pin(pinned)


FIXED = """
import os, numpy as np, torch
from elasticd.worker.determinism import pin
pin(os.environ); pin(os.environ)
x = torch.from_numpy((np.random.default_rng(1).integers(1, 1 << 22, 10_000) / (1 << 20)).astype("f4"))
exact = np.sqrt(x.numpy().astype("f8")).astype("f4")
strided = torch.stack([x, x], 1)[:, 0]
out = torch.empty(0)
torch.sqrt(x, out=out)
for root in (torch.sqrt(x), x.clone().sqrt_(), out, torch.sqrt(strided), torch._foreach_sqrt([x])[0]):
    assert (root.numpy() == exact).all() and root.dtype == torch.float32
assert torch.equal(torch.sqrt(torch.arange(5)), torch.arange(5).float().sqrt()) and torch.sqrt(torch.tensor(-1.0)).isnan()
assert torch.sqrt(x.bfloat16()).dtype == torch.bfloat16 and torch.sqrt(torch.tensor(4.0)).item() == 2.0
assert torch.allclose(torch.sqrt(torch.tensor([3 + 4j]).conj()), torch.tensor([2 - 1j]))
y = x[:9].double().requires_grad_()
for function in (torch.sqrt, torch.log, torch.log2, torch.log10, torch.tan, torch.atan):
    assert torch.autograd.gradcheck(function, y)
assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cuda.flash_sdp_enabled()
print("exact")
"""


@pytest.mark.cluster
def test_replaced_kernels_are_exact_in_all_their_forms() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIXED], env={**os.environ, **PINNED}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("exact\n", "")


def test_numpys_square_root_is_the_one_that_ieee_754_defines() -> None:
    values = np.arange(1, 100_001, dtype="f4")
    assert (np.sqrt(values) == np.sqrt(values.astype("f8")).astype("f4")).all()
