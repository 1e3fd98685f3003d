"""What this server offers: its GPUs as the driver's library (NVML) tells, or CPU slots where there is no driver."""

from __future__ import annotations

import logging

import psutil
import pynvml

from ..protocol.model import Gpu, GpuKind

log = logging.getLogger(__name__)


def discover(cpu_slots: int | None) -> tuple[Gpu, ...]:
    """GPUs by NVML's index; `cpu_slots` CPU slots if that is given; a slot per core if there is no NVIDIA driver."""
    if cpu_slots is not None:
        return cpu(cpu_slots)
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        cores = psutil.cpu_count() or 1
        log.info("no NVIDIA driver (%s): offering %d CPU slots", error, cores)
        return cpu(cores)
    try:
        return cuda()
    finally:
        pynvml.nvmlShutdown()


def cpu(slots: int) -> tuple[Gpu, ...]:
    """`slots` places for workers that compute on the CPU."""
    return tuple(Gpu(index=index, kind=GpuKind.CPU, name="CPU slot") for index in range(slots))


def cuda() -> tuple[Gpu, ...]:
    """The GPUs of an initialised NVML. One that answers with an error is left out, and the log says why."""
    gpus: list[Gpu] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(
                Gpu(
                    index=index,
                    kind=GpuKind.CUDA,
                    name=_text(pynvml.nvmlDeviceGetName(handle)),
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
            )
        except pynvml.NVMLError as error:
            log.error("GPU %d is left out: %s", index, error)
    return tuple(gpus)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
