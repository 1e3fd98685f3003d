"""A plain distributed script, as torchrun's tutorials have it: it knows nothing of this cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.full((2, 4), float(rank + 1))).sum().backward()
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
line = f"{rank} {world} {total.item():.0f} {' '.join(os.environ[name] for name in names)}\n"
Path(sys.argv[1], str(rank)).write_text(line)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # DDP keeps Gloo's threads: one that drops a tensor while the interpreter ends would abort the process
