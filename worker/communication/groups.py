"""Process groups of a communicator: their creation, abort and destruction (docs/design/gpus.md).

*Host* groups (Gloo) carry tensors in main memory, *device* groups (NCCL) those on a GPU. There are two of each: one for
collectives and one for state transfers, so that hundreds of megabytes on their way to a joiner do not delay the gradients of a
step.

Requirements of NCCL
--------------------
* Connecting takes from tenths of a second to seconds, and cannot be cancelled: a member waits forever for one that never comes.
So all members first announce in the store that they are about to connect (*agreement*, which can be cancelled). They connect in
a thread that can be abandoned, and that then destroys the groups it creates.
* Connections are made by the first operation that needs them. The *warm-up* runs one operation of each kind, so that no training
  step waits for that.
* A group's watchdog and monitor threads end the process when an operation fails, at once or minutes later, and hold locks
meanwhile. Here a failed operation is a normal event that the worker survives, so these threads are disabled
(`NCCL_ENVIRONMENT`).
* Both groups of a process are aborted at the same time: freeing the memory of one waits for kernels of the other.
* Each member chooses the network between servers by itself, and waits forever where others have chosen another one (nccl #234).
  So members compare their choices, and use sockets where these do not match.
* An abort may never return: NCCL joins threads of its own that wait for a peer (nccl #1777). So it has a time limit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # missing in the stubs of torch.distributed

from ...protocol.errors import OperatorError
from ...protocol.times import ABORT_TIMEOUT_S, CONNECT_TIMEOUT_S, WARM_UP_TIMEOUT_S
from ...protocol.variables import NCCL_ENVIRONMENT
from ...runtime.adapters import go_together
from .rendezvous import RendezvousCancelled, RendezvousStore

log = logging.getLogger(__name__)

GLOO_THREADS = 2
HOST, HOST_TRANSFER, DEVICE, DEVICE_TRANSFER = "host", "host-transfer", "device", "device-transfer"
LEAVE_CHECK_INTERVAL_S = 0.01
ABORT_LOOKS = 20

R = TypeVar("R")
SOCKETS = "Socket"  # NCCL's name for this network


class MakeGroup(Protocol):
    """Function that creates a group, as `nccl` does."""

    def __call__(
        self, store: Store, rank: int, size: int, timeout: timedelta, device: torch.device, network: str
    ) -> dist.ProcessGroup: ...


@dataclass(frozen=True)
class Groups:
    """The process groups of one communicator. Accelerator tensors use the device groups, all others the host groups."""

    host: dist.ProcessGroup
    host_transfer: dist.ProcessGroup
    device: dist.ProcessGroup | None = None
    device_transfer: dist.ProcessGroup | None = None

    def collective(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        """Return the group for collectives on `tensor`."""
        return self.host if tensor.device.type == "cpu" or self.device is None else self.device

    def transfer(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        """Return the group for point-to-point transfers of `tensor`."""
        on_host = tensor.device.type == "cpu" or self.device_transfer is None
        return self.host_transfer if on_host else self.device_transfer  # type: ignore[return-value]

    def is_on_device(self, group: dist.ProcessGroup) -> bool:
        """Return whether the operations of `group` are kernels on a device."""
        return group is self.device or group is self.device_transfer

    def abort_device(self, within_s: float = ABORT_TIMEOUT_S) -> bool:
        """Abort the device groups' operations, which ends them at all peers that do the same. Blocks for about `within_s`; for
        any thread, any number of times. Returns False if NCCL has not returned by then (nccl #1777): its threads are
        abandoned."""
        groups = [group for group in (self.device, self.device_transfer) if group is not None]
        threads = [threading.Thread(target=_abort, args=(group,), daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        for _ in range(ABORT_LOOKS):  # in slices: a process that was suspended meanwhile loses one slice only
            for thread in threads:
                thread.join(within_s / ABORT_LOOKS / len(threads))
            if not any(thread.is_alive() for thread in threads):
                return True
        return False


def shield(environ: MutableMapping[str, str]) -> None:
    """Set those variables of `NCCL_ENVIRONMENT` that `environ` lacks."""
    for name, value in NCCL_ENVIRONMENT.items():
        environ.setdefault(name, value)


def build_host_groups(store: RendezvousStore, rank: int, size: int, address: str, timeout: timedelta) -> Groups:
    """Connect the host groups. Raises RuntimeError, TimeoutError, RendezvousCancelled."""
    peers = [peer for peer in range(size) if peer != rank]
    # The keys that Gloo waits for, one after the other. Other names would only make it slower.
    store.expect([f"{name}/0/{peer}" for name in (HOST, HOST_TRANSFER) for peer in peers])
    host, host_transfer = (
        gloo(PrefixStore(name, store), rank, size, address, timeout) for name in (HOST, HOST_TRANSFER)
    )
    return Groups(host, host_transfer)


def gloo(store: Store, rank: int, size: int, address: str, timeout: timedelta) -> dist.ProcessGroup:
    """Create a connected Gloo group. Raises RuntimeError, TimeoutError."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]  # else Gloo resolves the host's name
    options._timeout = timeout
    options._threads = GLOO_THREADS
    return dist.ProcessGroupGloo(store, rank, size, options)  # type: ignore[return-value]


# ---------------------------------------------------------------------------------------------------------------- devices


def nccl(
    store: Store, rank: int, size: int, timeout: timedelta, device: torch.device, network: str
) -> dist.ProcessGroup:
    """Create a connected NCCL group. Blocks until all members are connected, even if one has died. network: between servers; "":
    NCCL's own choice. Raises OperatorError where this torch cannot choose one."""
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True  # a waiting peer costs more than delaying a kernel of this worker
    options._timeout = timeout
    if network:
        if not hasattr(options.config, "net_name"):
            raise OperatorError(
                "the servers' InfiniBand adapters do not go together, and this torch cannot choose sockets: set "
                "NCCL_IB_DISABLE=1 in `worker_environment` of all servers"
            )
        options.config.net_name = network
    group = dist.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return group  # type: ignore[return-value]


def gpu_identity(device: torch.device, environ: Mapping[str, str] = os.environ) -> str:
    """Return the identity of a GPU as NCCL sees it: by host and place there. NCCL_HOSTID, where set, names the host, so to NCCL
    one GPU can be two."""
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", "")) or f"unknown-{device.index}"
    host = environ.get("NCCL_HOSTID", "")
    return f"{uuid} of host {host}" if host else uuid


def add_device_groups(
    groups: Groups,
    store: RendezvousStore,
    rank: int,
    size: int,
    timeout: timedelta,
    device: torch.device,
    gpu: str,
    make: MakeGroup,
    layers: str = "",
) -> Groups:
    """Connect the device groups and add them to `groups`. Blocks until all members have connected.

    gpu: identity of this member's device. make: `nccl`. layers: link layers of adapters that NCCL would use here,
    comma-separated. Raises RendezvousCancelled when the store is cancelled, even while NCCL connects; OperatorError when two
    members have the same GPU; RuntimeError and TimeoutError when the members do not meet.
    """
    agree_on_gpus(store, rank, size, gpu)
    network = agree_on_network(store, rank, size, layers)

    def connect() -> Groups:
        with _present(device):
            device_group, device_transfer = (
                make(PrefixStore(name, store), rank, size, timeout, device, network)
                for name in (DEVICE, DEVICE_TRANSFER)
            )
            made = Groups(groups.host, groups.host_transfer, device_group, device_transfer)
            try:
                for group in (device_group, device_transfer):
                    warm_up(group, rank, size, device)
            except (RuntimeError, TimeoutError):
                made.abort_device()
                raise
        return made

    try:
        return Detached(connect, Groups.abort_device).result(lambda: store.cancelled)
    except RuntimeError as error:
        if "Duplicate GPU" in str(error):
            raise OperatorError(f"two workers of one job share a GPU, which NCCL refuses: {error}") from error
        raise


def agree_on_gpus(store: RendezvousStore, rank: int, size: int, gpu: str) -> None:
    """Announce that this member is about to connect, and wait for all others: no member backs out after this.

    Raises OperatorError if two members have the same GPU, RendezvousCancelled, TimeoutError.
    """
    store.set(f"gpu/{rank}", gpu)
    if rank == 0:
        keys = [f"gpu/{peer}" for peer in range(size)]
        store.wait(keys)
        store.set("gpus", shared_gpu([store.get(key).decode() for key in keys]))
    verdict = store.get("gpus").decode()
    if verdict:
        raise OperatorError(verdict)


def agree_on_network(store: RendezvousStore, rank: int, size: int, layers: str) -> str:
    """Return the network that all members use between servers: "" for NCCL's own choice, or SOCKETS where adapters of one server
    cannot connect to those of another. Raises RendezvousCancelled, TimeoutError."""
    store.set(f"layers/{rank}", layers)
    if rank == 0:
        keys = [f"layers/{peer}" for peer in range(size)]
        store.wait(keys)
        told = [store.get(key).decode() for key in keys]
        together = go_together([each for each in text.split(",") if each] for text in told)
        if not together:
            found = "; ".join(f"rank {peer} has {text or 'none'}" for peer, text in enumerate(told))
            log.warning("the workers' InfiniBand adapters do not go together, so they talk over sockets: %s", found)
        store.set("network", "" if together else SOCKETS)
    return store.get("network").decode()


def shared_gpu(gpus: Iterable[str]) -> str:
    """Return what is wrong with these GPUs of ranks 0, 1, ...; "" if all differ."""
    holder: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        if gpu in holder:
            return f"ranks {holder[gpu]} and {rank} share GPU {gpu}: NCCL wants a GPU for each worker of a job"
        holder[gpu] = rank
    return ""


def warm_up(group: dist.ProcessGroup, rank: int, size: int, device: torch.device) -> None:
    """Run one operation of each kind, so that its connections are made now. Raises RuntimeError, TimeoutError."""
    with _side_stream(device):
        row, rows = torch.zeros(1, 1, device=device), torch.zeros(size, 1, device=device)
        works = [
            group.allreduce([row]),
            group.broadcast(row, 0),
            group.alltoall_base(rows, rows.clone(), [1] * size, [1] * size),
            group._allgather_base(rows, row),
        ]
        deadline = time.monotonic() + WARM_UP_TIMEOUT_S
        for work in works:
            while not work.is_completed():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank {rank} of {size} waits for the others' first operations")
                time.sleep(1e-3)
            work.wait()  # completed already: raises its error, if any


def _present(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make `device` current in this thread: in a new thread, the first GPU is."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _side_stream(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Use another stream than the current one, which is the training's: operations would queue behind its kernels."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _abort(group: dist.ProcessGroup) -> None:
    group.abort()


class Detached(Generic[R]):
    """Object under construction in a thread that may block forever and can be abandoned."""

    def __init__(self, make: Callable[[], R], destroy: Callable[[R], object]) -> None:
        """destroy: disposes of a result that arrives after it was abandoned."""
        self._make = make
        self._destroy = destroy
        self._lock = threading.Lock()
        self._left = False
        self._outcome: queue.SimpleQueue[R | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="elasticd-connect", daemon=True).start()

    def result(self, cancelled: Callable[[], bool], within_s: float = CONNECT_TIMEOUT_S) -> R:
        """Return the result, or raise its error. Raises RendezvousCancelled as soon as `cancelled`, TimeoutError."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                outcome = self._outcome.get(timeout=LEAVE_CHECK_INTERVAL_S)
            except queue.Empty:
                if cancelled() and self._leave():
                    raise RendezvousCancelled("given up while the devices were being connected") from None
                if time.monotonic() > deadline and self._leave():
                    raise TimeoutError(f"the devices are not connected within {within_s:.1f} s") from None
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    def _leave(self) -> bool:
        with self._lock:
            self._left = self._outcome.empty()
            return self._left

    def _run(self) -> None:
        try:
            made = self._make()
        except Exception as error:  # raised in `result`
            self._outcome.put(error)
            return
        with self._lock:
            if not self._left:
                self._outcome.put(made)
                return
        self._destroy(made)
