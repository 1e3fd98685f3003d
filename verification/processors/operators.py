"""Digests of many operators' results, as JSON: `python -m verification.processors.operators [--fixed]`.

Run by `__main__` on this processor and on emulated ones. --fixed: as in a job with `determinism: heterogeneous`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from elasticd.worker.determinism import pin

# Expressions. x: 100,003 numbers around 0; p: positive ones; d(shape): more; g(): a generator; grad(function, ...): the result
# and the gradients of the sum of its squares. Random inputs are NumPy's integers, since torch's are among the results.
CASES = """
exp(x); expm1(x); log1p(p); sin(x); cos(x); tan(x); tanh(x); sigmoid(x); erf(x); erfc(x); erfinv(x / 9); atan(x); sinh(x)
cosh(x); lgamma(x); digamma(x); exp2(x); i0(x); asinh(x); acosh(p + 1); acos(x / 9); asin(x / 9); atanh(x / 9); atan2(x, p)
log(p); log2(p); log10(p); sqrt(p); rsqrt(p); reciprocal(p); p**x; p**2.5; p**-0.5; logaddexp(x, p); hypot(x, p); xlogy(x, p)
exp(y); expm1(y); log1p(y.abs()); sin(y); cos(y); tan(y); tanh(y); sigmoid(y); erf(y); atan(y); sinh(y); lgamma(y); exp2(y)
log(y.abs()); log2(y.abs()); log10(y.abs()); sqrt(y.abs()); rsqrt(y.abs()); y.abs() ** y; digamma(y); asinh(y); cosh(y)
grad(F.gelu, x); F.gelu(x, approximate="tanh"); grad(F.silu, x); grad(F.softplus, x); grad(F.mish, x); grad(F.elu, x)
grad(lambda a, w: F.conv2d(a, w, padding=1), d(8, 16, 14, 14), d(32, 16, 3, 3)); grad(F.conv1d, d(4, 16, 50), d(8, 16, 5))
grad(lambda a, w: F.conv2d(a, w, stride=2), d(32, 3, 16, 16), d(8, 3, 3, 3)); F.conv2d(d(1, 1, 8, 8), d(2, 1, 1, 1))
grad(lambda a, w: F.conv2d(a, w, groups=16), d(4, 16, 14, 14), d(16, 1, 3, 3)); grad(F.conv3d, d(2, 4, 8, 8, 8), d(8, 4, 3, 3, 3))
grad(lambda a, w: F.conv_transpose2d(a, w, stride=2), d(4, 16, 7, 7), d(16, 8, 3, 3))
grad(F.conv2d, d(4, 8, 14, 14).double(), d(8, 8, 3, 3).double())
grad(matmul, d(130, 200), d(200, 140)); grad(matmul, d(130, 200).double(), d(200, 140).double()); d(3, 4) @ d(4, 5)
grad(bmm, d(8, 20, 30), d(8, 30, 17)); d(130, 200) @ d(200); dot(d(10007), d(10007)); addmv(d(130), d(130, 200), d(200))
baddbmm(d(8, 20, 17), d(8, 20, 30), d(8, 30, 17)); grad(F.linear, d(33, 64), d(10, 64), d(10)); grad(cdist, d(30, 8), d(40, 8))
einsum("bij,bjk,bk->bi", d(4, 5, 6), d(4, 6, 7), d(4, 7)); F.cosine_similarity(d(30, 8), d(30, 8))
grad(lambda a: F.layer_norm(a, (768,)), d(64, 768)); grad(lambda a: F.rms_norm(a, (768,)), d(64, 768))
grad(lambda a: F.batch_norm(a, None, None, training=True), d(8, 16, 10, 10)); grad(lambda a: F.group_norm(a, 4), d(8, 16, 10, 10))
grad(lambda a: F.batch_norm(a, None, None, training=True), d(8, 16, 10, 10).to(memory_format=channels_last))
grad(lambda a: F.softmax(a, -1), d(64, 1001)); grad(lambda a: F.log_softmax(a, -1), d(64, 1001)); F.softmax(d(64, 101), 0)
grad(lambda a: F.cross_entropy(a, arange(64)), d(64, 101)); F.binary_cross_entropy_with_logits(d(64), p[:64])
grad(F.scaled_dot_product_attention, d(2, 4, 64, 16), d(2, 4, 64, 16), d(2, 4, 64, 16))
F.scaled_dot_product_attention(d(1, 2, 300, 32), d(1, 2, 300, 32), d(1, 2, 300, 32), is_causal=True)
d(1000003).sum(); d(1003, 77).sum(0); d(1003, 77).sum(1); d(1003, 77).mean(); d(1003, 77).var(1); d(1003, 77).std(0)
d(10007).norm(); d(10007).norm(3); (1 + 0.001 * d(10007)).prod(); d(103, 77).logsumexp(1); d(1003, 77).cumsum(0)
grad(lambda a: F.max_pool2d(a, 2), d(4, 8, 14, 14)); grad(lambda a: F.avg_pool2d(a, 3), d(4, 8, 14, 14))
grad(lambda a: F.adaptive_avg_pool2d(a, 3), d(4, 8, 14, 14)); grad(lambda a: F.interpolate(a, scale_factor=1.7), d(2, 3, 14, 14))
grad(lambda a: F.interpolate(a, scale_factor=1.7, mode="bilinear"), d(2, 3, 14, 14))
grad(lambda a: F.interpolate(a, scale_factor=1.7, mode="bicubic"), d(2, 3, 14, 14))
grad(lambda a, at: F.grid_sample(a, at, align_corners=False), d(2, 3, 8, 8), d(2, 5, 5, 2))
grad(lambda w: F.embedding(arange(64) % 10, w), d(20, 33)); grad(lambda w: F.embedding_bag(arange(64) % 10, w, bags), d(20, 33))
F.embedding_bag(arange(64) % 10, d(20, 33), bags, mode="sum", per_sample_weights=d(64))
grad(lambda a: lstm(a)[0], d(7, 4, 16)); grad(lambda a: gru(a)[0], d(7, 4, 16))
fft.rfft(d(8, 1000)); fft.fft2(d(8, 30, 30)); stft(d(2000), 128, window=hann_window(128), return_complex=True)
linalg.inv(m); linalg.svd(m); linalg.eigh(m + m.T); linalg.cholesky(m @ m.T + 40 * eye(40)); linalg.qr(m)
linalg.solve(m, d(40)); linalg.det(m); matrix_exp(m / 9)
randn(1000, generator=g()); randn(7, generator=g()); rand(1000, generator=g()); randperm(1000, generator=g())
multinomial(p[:100], 1000, True, generator=g()); bernoulli(full((1000,), 0.3), generator=g())
empty(1000).exponential_(generator=g()); normal(x[:100], p[:100], generator=g()); poisson(p[:1000], generator=g())
empty(1000).geometric_(0.3, generator=g()); empty(1000).log_normal_(generator=g()); empty(1000).cauchy_(generator=g())
zeros(10).index_add(0, arange(100) % 10, d(100)); zeros(10).index_put((arange(100) % 10,), d(100), accumulate=True)
zeros(10, 5).scatter_add(0, arange(100).reshape(20, 5) % 10, d(20, 5)); bincount(arange(100) % 10, weights=d(100))
updated(optim.SGD, momentum=0.9); updated(optim.Adam); updated(optim.AdamW); updated(optim.RMSprop); updated(optim.Adagrad)
updated(optim.Adam, fused=True); updated(optim.AdamW, fused=True); updated(optim.Adam, foreach=True); updated(optim.NAdam)
np.exp(a); np.log(a); np.sin(a); np.tanh(a); np.sqrt(a); np.exp(b); np.log(b); np.sin(b); np.tanh(b); b**1.7; a @ a; a.sum()
a.mean(0); a.std(1); np.linalg.svd(a); np.fft.fft(a); np.random.default_rng(3).standard_normal(1000)
np.array([math.exp(v) + math.sin(v) + math.log(v) + v**1.7 for v in b[0].tolist()])
"""

_numbers = np.random.default_rng(1)


def _data(*shape: int) -> torch.Tensor:
    return torch.from_numpy((_numbers.integers(-(1 << 22), 1 << 22, shape) / (1 << 20)).astype("f4"))


def _gradients(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> list[torch.Tensor | None]:
    inputs = [each.clone().requires_grad_() for each in given]
    result = function(*inputs)
    (result * result).sum().backward()  # type: ignore[no-untyped-call]
    return [result, *(each.grad for each in inputs)]


def _updated(kind: Any, **options: Any) -> torch.Tensor:
    parameter = nn.Parameter(_data(1003))
    optimizer = kind([parameter], lr=0.01, **options)
    for _ in range(3):
        parameter.grad = _data(1003)
        optimizer.step()
    return parameter


def _filled(module: nn.Module) -> nn.Module:
    for each in module.parameters():
        each.data.copy_(_data(*each.shape) * 0.05)
    return module


def _digest(results: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for each in results:
        found.update(np.ascontiguousarray(each.detach().numpy() if isinstance(each, torch.Tensor) else each).tobytes())
    return found.hexdigest()[:16]


def digests() -> dict[str, str]:
    """Return the digest of each case."""
    x = _data(100_003)
    names: dict[str, Any] = {
        **vars(torch),
        "F": functional,
        "np": np,
        "math": math,
        "x": x,
        "p": x.abs() + 0.1,
        "y": x[:10_007].double() + 0.013,
        "d": _data,
        "grad": _gradients,
        "updated": _updated,
        "g": lambda: torch.Generator().manual_seed(1),
        "m": _data(40, 40),
        "a": _data(100, 100).abs().numpy() + 0.1,
        "bags": torch.arange(0, 64, 8),
        "lstm": _filled(nn.LSTM(16, 24, 2)),
        "gru": _filled(nn.GRU(16, 24)),
    }
    names["b"] = names["a"].astype("f8")
    found = {}
    for case in CASES.replace("\n", ";").split(";"):
        if case := case.strip():
            result = eval(case, names)
            found[case] = _digest(result if isinstance(result, tuple | list) else [result])
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if "--fixed" in sys.argv:
        pin(os.environ)
    print(json.dumps(digests()))
