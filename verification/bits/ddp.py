"""The same training under DistributedDataParallel, compared bit for bit.

    torchrun --nproc-per-node 4 -m verification.bits.ddp cnn 4 result.pt --canonical

Each rank stands for one virtual worker: it reads that worker's slice of each step, with its seeds. With two ranks DDP is used
as it is. With four, its all-reduce adds in another order than the tree, so `worker.ddp.canonical_hook` replaces it. Buffers are
those of rank 0. All steps are full, because DDP does not weight ranks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import elasticd
from elasticd.worker.data.fetching import fetch
from elasticd.worker.data.sampling import OwnOrder, SerialSampler
from elasticd.worker.gradients.ddp import CanonicalState, canonical_hook
from elasticd.worker.virtual import derive_seed, seed_everything

from .training import BATCH_SIZE, MODELS, SEED, Recipe, build, document, gradient_size, save
from .verdict import differing_bits

EPOCHS = 3
STEPS_PER_EPOCH = 12


@dataclass(frozen=True)
class Comparison:
    """Result of one run under DDP and one elastic run."""

    model: str
    processes: int
    hook: bool
    steps: int
    differing_bits: int

    def text(self) -> str:
        how = "canonical hook" if self.hook else "as it is"
        return (
            f"DistributedDataParallel ({how}), {self.model}, {self.processes} processes, {self.steps} steps:"
            f" {self.differing_bits} bits differ"
        )


def full_steps(ranks: int) -> int:
    """Return the number of samples with which all steps are full."""
    return STEPS_PER_EPOCH * ranks * BATCH_SIZE


# ------------------------------------------------------------------------------------------------------- under DDP


def train_ddp(recipe: Recipe, canonical: bool) -> dict[str, Any]:
    """Train on this rank in an ordinary DDP loop, with the runtime's seeds."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, optimizer, scheduler = build(recipe)
    dataset = recipe.dataset(full_steps(ranks))
    if isinstance(dataset, tuple):  # columns, of which `prepare` makes a dataset
        dataset = TensorDataset(*dataset)
    sampler = SerialSampler(OwnOrder(full_steps(ranks), SEED, shuffle=True), ranks, BATCH_SIZE)
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.01)  # small, so that there are several buckets
    if canonical:
        parallel.register_comm_hook(CanonicalState(), canonical_hook)
    seen: list[float] = []
    for step in range(EPOCHS * STEPS_PER_EPOCH):
        seed_everything(derive_seed(SEED, "data", step, rank))
        batch = fetch(dataset, sampler.indices(step, rank))
        seed_everything(derive_seed(SEED, "model", step, rank))
        recipe.loss(parallel, batch).backward()  # type: ignore[no-untyped-call]
        if recipe.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        seen.append(gradient_size(model))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return document(model, optimizer, scheduler, {"seen": seen})


def train_elastic(recipe: Recipe, run: elasticd.Run) -> dict[str, Any]:
    """Train the same with this project; the script does not know its rank."""
    model, optimizer, scheduler = build(recipe)
    seen: list[float] = []
    _, elastic, batches = run.prepare(
        model,
        optimizer,
        recipe.dataset(full_steps(run.virtual_workers)),
        BATCH_SIZE,
        scheduler=scheduler,
        max_grad_norm=recipe.max_grad_norm,
        before_update=lambda: seen.append(gradient_size(model)),
    )
    for _ in run.epochs(EPOCHS):
        for batch in batches:
            recipe.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            elastic.step()
    return document(model, optimizer, scheduler, {"seen": seen})


# -------------------------------------------------------------------------------------------------------- comparing


def compare(work: Path, model: str, ranks: int, hook: bool) -> Comparison:
    """Train both ways in child processes, and compare."""
    paths = work / "ddp.pt", work / "elastic.pt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    flags = ["--canonical"] if hook else []
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "ELASTIC_VIRTUAL_WORKERS": str(ranks)}
    module = ["-m", __name__, model, str(paths[0]), *flags]
    for command in ([*torchrun, *module], [sys.executable, "-m", __name__, model, str(paths[1])]):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    bits = differing_bits(*(torch.load(path, weights_only=True) for path in paths))
    return Comparison(model, ranks, hook, EPOCHS * STEPS_PER_EPOCH, bits)


def compare_all(work: Path) -> list[Comparison]:
    """Run all comparisons."""
    found = []
    for ranks, hook in ((2, False), (2, True), (4, True)):
        for model in (name for name, recipe in MODELS.items() if not recipe.evaluates_again):
            found.append(compare(work, model, ranks, hook))
            print(found[-1].text(), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("path")
    parser.add_argument("--canonical", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        save(train_elastic(MODELS[chosen.model], elasticd.join(seed=SEED)), chosen.path)
        return
    dist.init_process_group("gloo")
    result = train_ddp(MODELS[chosen.model], chosen.canonical)
    if dist.get_rank() == 0:
        save(result, chosen.path)
    dist.barrier()  # the first rank to leave would break the others' connections
    os._exit(
        0
    )  # Gloo's threads live on in DDP: one that drops a tensor at the interpreter's exit would abort the process


if __name__ == "__main__":
    main()
