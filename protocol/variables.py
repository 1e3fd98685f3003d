"""Environment variables that a process needs before it uses a GPU, since CUDA, cuBLAS and NCCL read them once.

The agent sets them for the workers of jobs that join. A worker that was started by hand sets the missing ones itself,
as early as it can. Values that the operator or the job has set are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REPEATABLE: Mapping[str, str] = MappingProxyType(
    {
        # cuBLAS repeats its results only if it may not choose its workspace anew (use_deterministic_algorithms asks for it).
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # NVLS lets NVSwitches add (NVLink SHARP): neither the order nor the precision of their sums is that of a GPU, and which
        # sums they add depends on the number of GPUs and on the message's size.
        "NCCL_NVLS_ENABLE": "0",
    }
)
"""What a worker's environment has to contain where a job's bits count: all determinisms but `none`."""

PINNED: Mapping[str, str] = MappingProxyType(
    {
        **REPEATABLE,
        "OMP_NUM_THREADS": "1",  # the order of sums depends on the number of threads
        "MKL_NUM_THREADS": "1",  # the same; takes precedence over OMP_NUM_THREADS where it is set
        "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels and random numbers: longer vectors add in another order
        "MKL_CBWR": "COMPATIBLE",  # matrix products: the code path that x86 processors of all vendors have
        "ONEDNN_MAX_CPU_ISA": "SSE41",  # convolutions and some activations
        "OPENBLAS_NUM_THREADS": "1",  # NumPy's matrix products in the data pipeline
        "OPENBLAS_CORETYPE": "Nehalem",  # the same, for the smallest processor that torch supports
        # NumPy's own loops: names since version 2.4, and before; it ignores unknown ones
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_SKX",
        # exp, log, pow and others of the C library, which torch and Python call: with FMA the last bit is another
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX,-AVX512F",
        "TORCH_COMPILE_DISABLE": "1",  # compiled code is made for one processor; models run uncompiled instead
        "NVIDIA_TF32_OVERRIDE": "0",  # cuBLAS and cuDNN: GPUs older than A100 have no TF32
    }
)
"""What a worker's environment has to contain under `determinism: heterogeneous` (EasyScale 3.3, D2), before its first import:
the same kernels on all processors. These values override all others. `verification/processors` shows which bits they keep."""

GANG = "ELASTICD_GANG"
"""Variables by which a gang's processes find each other (RANK and so on), each as NAME=VALUE: a worker that joins drops them."""

NCCL_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        # No watchdog, hence no monitor either: both end the process. The setting makes `wait` of a work block, which is
        # called only once the work is completed; streams are ordered by `block_current_stream`.
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        # Should a version have a watchdog all the same: the watchdog neither ends the process nor sleeps while it holds
        # the lock that each new operation needs (for a minute, by default, to let others write their traces).
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
        "TORCH_NCCL_PROPAGATE_ERROR": "0",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
        # Rings and trees connect when the group is made, not in a step.
        "NCCL_RUNTIME_CONNECT": "0",
        # Streams that share a hardware queue wait for each other: two groups could then wait for each other across
        # workers.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }
)
"""Variables that a worker's environment needs before the worker uses a GPU, unless its operator sets others."""

EAGER_FROM_BYTES = 24 << 30
JOINERS_ENVIRONMENT: Mapping[str, str] = MappingProxyType({"CUDA_MODULE_LOADING": "EAGER"})
"""Additional variables of a joining worker, on a GPU of at least `EAGER_FROM_BYTES`: all of the libraries' kernels are
loaded when CUDA starts, where no worker waits for the load, and not in its first step, where all workers wait
(docs/design/gpus.md).
"""

SUBMITTED_FROM = "ELASTIC_SUBMITTED_FROM"  # of a job that runs in a snapshot: the original directory
