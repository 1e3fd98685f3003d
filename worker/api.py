"""The public API of a training script: `join` and `Run` (design: worker-runtime 8)::

    import elasticd as elastic

    run = elastic.join()
    model, optimizer, batches = run.prepare(model, optimizer, dataset, batch_size=32)
    for epoch in run.epochs(10):
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    run.save(model, "digits.pt")

The script is written for one GPU. The job has N *virtual workers*; a global step trains one micro-batch for each
virtual worker and applies one update, however many processes share the work. The loop body therefore runs once for each
virtual worker that this process hosts, and `optimizer.step()` acts when the last of these bodies is done. Outside a
cluster one process hosts all N virtual workers, with the same result, bit for bit.
"""

from __future__ import annotations

import os

import torch

from ..protocol import exits
from ..protocol.errors import UserError
from ..protocol.rehearsal import asked
from .admission import JOINED, Process, check_group, check_process, leave_gang, take_key
from .control import OUT_OF_ROOM, ClusterControl
from .data.shards import Shards as Shards
from .data.sources import Lines as Lines
from .data.sources import TarSamples as TarSamples
from .determinism import before_cuda
from .driver import LocalControl
from .ending import end_process
from .environment import read_cluster, read_virtual_workers
from .events import Noticed
from .initial import InitialWeights
from .left_threads import Patience, watch
from .run import Run as Run


def join(*, virtual_workers: int | None = None, seed: int = 0, threads: int = 1) -> Run:
    """Join this process to its job and return the `Run`; outside a cluster the process is the job's only worker.

    - `virtual_workers`: N, the number of micro-batches in a global step, outside a cluster if `ELASTIC_VIRTUAL_WORKERS`
      is not set (default 1). In a cluster the job defines N, and the result depends on it: another number here raises
      UserError.
    - `seed`: the runtime derives every random seed from this number, the step and the virtual worker. It also seeds the
      initial weights of a model that is created after this call.
    - `threads`: number of threads that torch uses for one CPU operation. The bits of a result depend on it.

    Raises UserError in a process that is not the worker itself, such as a child process (`admission`).
    """
    check_process(os.environ, Process.present(os.getpid()))
    check_group()
    torch.set_num_threads(threads)
    if (errand := asked(os.environ)) is not None:
        from .rehearsal.run import Rehearsed

        return Rehearsed(errand, virtual_workers, seed)
    environment = read_cluster(os.environ)
    if environment is None:
        before_cuda(os.environ)
        count = read_virtual_workers(os.environ, virtual_workers)
        return Run(LocalControl.alone(count), None, count, seed, InitialWeights(seed))
    if virtual_workers is not None and virtual_workers != environment.virtual_workers:
        raise UserError(
            f"the job has {environment.virtual_workers} virtual workers, the script asks for {virtual_workers}: "
            "say it in one place, or the same in both"
        )
    leave_gang(os.environ)
    take_key(os.environ)
    os.environ[JOINED] = str(os.getpid())
    try:
        control = ClusterControl(environment)
        control.start()
    except OUT_OF_ROOM as error:
        end_process(exits.SPEECHLESS, f"this worker cannot talk to the cluster: {type(error).__name__}: {error}")
    run = Run(control, environment, environment.virtual_workers, seed, InitialWeights(seed))
    patience = Patience.of(environment.limits.pause_timeout_s)
    watch(patience, lambda text: control.tell(Noticed(text)), run.has_failed)
    return run
