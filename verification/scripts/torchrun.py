"""`examples.frameworks.torchrun_ddp` in as many processes as there are virtual workers, for comparison with `ddp`:

    torchrun --nproc-per-node 4 -m verification.scripts.torchrun result.pt

The script is unchanged. Two things are added from outside, without which no two runs are equal: the canonical sum as a
communication hook (`worker.gradients.ddp`), and the runtime's seeds before each batch is read and trained.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from elasticd.worker.gradients.ddp import CanonicalState, canonical_hook
from elasticd.worker.virtual import derive_seed, seed_everything
from examples.frameworks import torchrun_ddp

from ..bits.points import wrap
from ..bits.training import save
from ..bits.verdict import differing_bits

SEED = 0  # default seed of a job


class _Seeded:
    """Iterates over a training loader as the runtime does: each batch with the seeds of its step and virtual worker."""

    def __init__(self) -> None:
        self._step = 0

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            seed_everything(derive_seed(SEED, "data", self._step, dist.get_rank()))
            batch = next(batches, None)
            if batch is None:
                return
            seed_everything(derive_seed(SEED, "model", self._step, dist.get_rank()))
            self._step += 1
            yield batch


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    seeded, plain = _Seeded(), DataLoader.__iter__

    def iterate(loader: DataLoader[Any]) -> Any:
        batches = plain(loader)
        return seeded.over(batches) if isinstance(loader.sampler, DistributedSampler) else batches

    def hooked(model: DistributedDataParallel, *_: Any) -> None:
        model.register_comm_hook(CanonicalState(), canonical_hook)

    built: list[DistributedDataParallel] = []
    wrap(DistributedDataParallel, "__init__", lambda model, *_: built.append(model), lambda _: hooked(built[-1]))
    setattr(DataLoader, "__iter__", iterate)  # noqa: B010
    document = torchrun_ddp.train()
    if dist.get_rank() == 0:
        save(document, sys.argv[1])
    dist.barrier()  # the first rank to leave would break the others' connections
    os._exit(
        0
    )  # Gloo's threads live on in DDP: one that drops a tensor at the interpreter's exit would abort the process


def compare(work: Path, elastic: dict[str, Any], ranks: int) -> int:
    """Return the number of bits of parameters, buffers, optimizer state and log that differ from the elastic script's.

    Raises RuntimeError if the script fails."""
    path = work / "torchrun.pt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*torchrun, "-m", __name__, str(path)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return differing_bits(torch.load(path, weights_only=True), elastic)


if __name__ == "__main__":
    main()
