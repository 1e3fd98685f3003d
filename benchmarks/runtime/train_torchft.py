"""The measured job under torchft, one replica: `python -m benchmarks.runtime.train_torchft WORKLOAD RECORD PACE_S REPLICAS NAME`

TORCHFT_LIGHTHOUSE is the address of its lighthouse; MASTER_ADDR and MASTER_PORT are those of this replica's own store.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
import torchft

from .record import Recorder
from .train_ddp import MICRO_BATCHES
from .workloads import build, sgd


def main(name: str, record: str, pace_s: float, replicas: int, replica: str) -> None:
    """Train until ended. A step counts when torchft has committed it."""
    torch.set_num_threads(1)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torchft connects to this store, which its launcher would create; it lives as long as this variable.
    store = torch.distributed.TCPStore(host, port, is_master=True, wait_for_workers=False)
    assert store.port == port
    workload = build(name)
    model, inner = workload.model, sgd(workload.model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=port,
        hostname=host,
        replica_id=replica,
    )
    wrapped = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, inner)
    recorder = Recorder(record)
    x, y = workload.data
    share = MICRO_BATCHES * workload.batch_size // replicas
    while True:
        optimizer.zero_grad()  # begins a step in torchft
        rows = torch.randint(len(x), (share,))
        if pace_s:
            time.sleep(pace_s * MICRO_BATCHES / replicas)
        workload.loss(wrapped(x[rows]), y[rows]).backward()
        step = manager.current_step()
        optimizer.step()
        if manager.current_step() > step:
            rank = manager.participating_rank()
            recorder.applied(step, -1 if rank is None else rank, manager.num_participants())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
