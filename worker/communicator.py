"""One generation's communicator: collectives among its workers, and transfers of state between two of them.

Communicators are process groups without a global default group, so that the next one is built in a background thread beside the
one in use, and the switch is the exchange of a pointer (design: worker-runtime 4). Three things differ from their usual use:

* *Nobody blocks in a wait.* When a worker dies, only those who talk to it get an error; the others would wait until a timeout.
  `wait` polls for completion and looks at a flag that `abort` sets from the control thread. An operation that is given
  up still owns its tensors: they must not be used again.
* *State has connections of its own.* A second group carries `send` and `receive`, so that hundreds of megabytes on their way to a
  joiner do not stand in the queue before the gradients of a step. The library says of a point-to-point operation of Gloo that it
  is done only to somebody who waits for it, so a thread for each direction and peer does.
* *Groups are destroyed elsewhere.* That takes 10 ms, and for ever where an operation is stuck. A daemon thread, the
  keeper, owns a communicator's groups; at the end of the process it is simply frozen (`ending`), with whatever it owns.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # the stubs of torch.distributed lack them

from ..protocol.errors import ElasticError, OperatorError
from .rendezvous import Rendezvous, RendezvousCancelled, RendezvousStore

__all__ = ["Communicator", "CommunicatorBroken", "Rendezvous", "RendezvousCancelled", "RendezvousStore"]

POLL_FIRST_S = 20e-6
POLL_GROWTH = 1.5
POLL_LAST_S = 1e-3
RETIRE_AFTER_S = 1.0  # a peer may still be reading the last of what we sent; closing at once can reset the connection
DESTROYED_WITHIN_S = 5.0
GLOO_THREADS = 2


class CommunicatorBroken(ElasticError):
    """A peer is gone, or the communicator was abandoned: nothing more can be done with it."""


class _Done(dist.Work):
    """An operation among one worker."""

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


class _Awaited(dist.Work):
    """An operation that a thread waits for, since it does not tell by itself that it is completed.

    It owns its tensor, which Gloo's point-to-point operations do not: if the operation is given up, bytes may still arrive.
    """

    def __init__(self, work: dist.Work, tensor: torch.Tensor) -> None:
        super().__init__()
        self._work: dist.Work | None = work
        self._tensor: torch.Tensor | None = tensor
        self._error: RuntimeError | None = None
        self._completed = threading.Event()

    def run(self, timeout: timedelta) -> None:
        assert self._work is not None
        try:
            self._work.wait(timeout)
        except RuntimeError as error:
            self._error = error
        self._work = self._tensor = None
        self._completed.set()

    def is_completed(self) -> bool:
        return self._completed.is_set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._completed.wait()
        if self._error is not None:
            raise self._error
        return True


@dataclass(frozen=True)
class _Groups:
    """The process groups of one communicator. Tensors on an accelerator take the device groups, all others the host groups."""

    host: dist.ProcessGroup
    host_transfer: dist.ProcessGroup
    device: dist.ProcessGroup | None = None
    device_transfer: dist.ProcessGroup | None = None

    def collective(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        return self.host if tensor.device.type == "cpu" or self.device is None else self.device

    def transfer(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        on_host = tensor.device.type == "cpu" or self.device_transfer is None
        return self.host_transfer if on_host else self.device_transfer  # type: ignore[return-value]


class Communicator:
    """What the workers of one generation say to each other. Made by `build` or `alone`.

    Operations return at once with a work, to be given to `wait`; all workers call the collectives in the same order. They are for
    one thread, as is `wait`; `abort` and `retire` are for any.
    """

    def __init__(self, rank: int, size: int, groups: _Groups | None, timeout_s: float, keep: tuple[Any, ...]) -> None:
        self.rank = rank
        self.size = size
        self._groups = groups
        self._timeout = timedelta(seconds=timeout_s)
        self._aborted = threading.Event()
        self._keeper: _Keeper | None = None
        self._waiters: dict[tuple[str, int], queue.SimpleQueue[_Awaited | None]] = {}
        if groups is not None:
            self._keeper = _Keeper((groups, keep))

    @classmethod
    def alone(cls) -> Communicator:
        """Of one worker: needs nobody and nothing."""
        return cls(0, 1, None, 0.0, ())

    @classmethod
    def build(
        cls,
        backend: Literal["gloo", "nccl"] | str,
        store: RendezvousStore,
        rank: int,
        size: int,
        address: str,
        timeout_s: float,
    ) -> Communicator:
        """Meet the other members in `store` and connect to them. Blocks; all members do so at about the same time.

        backend: "gloo", or "nccl" for CUDA tensors beside it. address: the IP address that we are reached at.
        timeout_s: after that long an operation fails even if nobody aborts.
        Raises RendezvousCancelled if the store was cancelled, CommunicatorBroken if the others cannot be reached in time.
        """
        if size == 1:
            store.close()
            return cls.alone()
        timeout = timedelta(seconds=timeout_s)
        # A Python reference to all stores: a group keeps a C++ one, and that calls back into Python.
        stores = [PrefixStore(name, store) for name in ("host", "host-transfer", "device", "device-transfer")]
        try:
            host = _gloo(stores[0], rank, size, address, timeout)
            host_transfer = _gloo(stores[1], rank, size, address, timeout)
            groups = _Groups(host, host_transfer)
            if backend == "nccl":
                device, device_transfer = (_nccl(stores[i], rank, size, timeout) for i in (2, 3))
                groups = _Groups(host, host_transfer, device, device_transfer)
            elif backend != "gloo":
                raise OperatorError(f"there is no backend {backend!r}: use gloo or nccl")
        except (RuntimeError, TimeoutError) as error:
            if store.cancelled:
                raise RendezvousCancelled(str(error).partition("\n")[0]) from None
            raise CommunicatorBroken(f"cannot connect rank {rank} of {size}: {error}".partition("\n")[0]) from error
        finally:
            store.close()
        return cls(rank, size, groups, timeout_s, (store, stores))

    # -- its end

    @property
    def aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        """Give everything in progress up: waits raise CommunicatorBroken, now and ever after. For any thread."""
        self._aborted.set()
        groups = self._groups
        if groups is not None and groups.device is not None:
            # NCCL's kernels would spin on the device for ever; Gloo's operations sit in threads that nobody waits for.
            _in_background("elasticd-abort", _abort_device, groups)

    def retire(self) -> None:
        """It is not used any more: its groups are destroyed in a while, in the background. For any thread."""
        self._groups = None
        for waiter in list(self._waiters.values()):
            waiter.put(None)
        if self._keeper is not None:
            self._keeper.release()

    # -- operations

    def wait(self, work: dist.Work | None) -> None:
        """Until `work`, if any, is completed. Raises CommunicatorBroken if it failed or everything is aborted."""
        if work is None:
            return
        pause_s = POLL_FIRST_S
        while not self._aborted.is_set() and not work.is_completed():
            time.sleep(pause_s)
            pause_s = min(pause_s * POLL_GROWTH, POLL_LAST_S)
        if self._aborted.is_set():
            raise CommunicatorBroken("abandoned")
        try:
            work.wait()  # is completed: raises its error if it has one, orders the present CUDA stream after it
        except RuntimeError as error:
            raise CommunicatorBroken(str(error).partition("\n")[0]) from error

    def poll(self, work: dist.Work) -> bool:
        """Whether operations issued now may use the result of `work`. Does not block. Raises CommunicatorBroken as `wait`."""
        if self._aborted.is_set():
            raise CommunicatorBroken("abandoned")
        if not work.is_completed():
            return False
        self.wait(work)
        return True

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """Sum over all ranks, in place."""
        return self._collective(tensor, lambda group: group.allreduce([tensor], _reduction(dist.ReduceOp.SUM)))

    def all_reduce_max(self, tensor: torch.Tensor) -> dist.Work:
        """Greatest over all ranks, elementwise, in place."""
        return self._collective(tensor, lambda group: group.allreduce([tensor], _reduction(dist.ReduceOp.MAX)))

    def broadcast(self, tensor: torch.Tensor, root: int) -> dist.Work:
        """Everybody's `tensor` becomes that of `root`."""
        return self._collective(tensor, lambda group: group.broadcast(tensor, root))

    def all_to_all(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: list[int], in_splits: list[int]
    ) -> dist.Work:
        """Rows of `inp`, `in_splits[r]` for each rank r, go there; `out_splits[r]` rows of `out` come from rank r."""
        if self.size == 1:
            out.copy_(inp)
        return self._collective(out, lambda group: group.alltoall_base(out, inp, out_splits, in_splits))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> dist.Work:
        """`out` becomes everybody's `inp`, in rank order."""
        if self.size == 1:
            out.copy_(inp)
        return self._collective(out, lambda group: group._allgather_base(out, inp))

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """To `rank`, which calls `receive` with the same tag. Any type, contiguous, not empty, not to be changed meanwhile."""
        return self._transfer(tensor, "send", rank, lambda group: group.send([_as_bytes(tensor)], rank, tag))

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """What `rank` sends with this tag, into `tensor`."""
        return self._transfer(tensor, "receive", rank, lambda group: group.recv([_as_bytes(tensor)], rank, tag))

    def _collective(self, tensor: torch.Tensor, start: Callable[[dist.ProcessGroup], dist.Work]) -> dist.Work:
        if self.size == 1:
            return _Done()
        return self._start(self._present().collective(tensor), start)

    def _transfer(
        self, tensor: torch.Tensor, direction: str, peer: int, start: Callable[[dist.ProcessGroup], dist.Work]
    ) -> dist.Work:
        groups = self._present()
        group = groups.transfer(tensor)
        work = self._start(group, start)
        if group is not groups.host_transfer:
            return work
        awaited = _Awaited(work, tensor)
        self._waiter(direction, peer).put(awaited)
        return awaited

    def _present(self) -> _Groups:
        groups = self._groups
        if groups is None or self._aborted.is_set():
            raise CommunicatorBroken("abandoned")
        return groups

    def _start(self, group: dist.ProcessGroup, start: Callable[[dist.ProcessGroup], dist.Work]) -> dist.Work:
        try:
            return start(group)
        except RuntimeError as error:  # the connection is known to be lost already
            raise CommunicatorBroken(str(error).partition("\n")[0]) from error

    def _waiter(self, direction: str, peer: int) -> queue.SimpleQueue[_Awaited | None]:
        waiter = self._waiters.get((direction, peer))
        if waiter is None:
            waiter = self._waiters[direction, peer] = queue.SimpleQueue()
            _in_background(f"elasticd-{direction}-{peer}", _await_all, waiter, self._timeout)
        return waiter


def _gloo(store: Store, rank: int, size: int, address: str, timeout: timedelta) -> dist.ProcessGroup:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]  # else it asks the resolver for our name
    options._timeout = timeout
    options._threads = GLOO_THREADS
    return dist.ProcessGroupGloo(store, rank, size, options)  # type: ignore[return-value]


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    options = dist.ProcessGroupNCCL.Options()
    options.config.blocking = 0  # so that a member which never comes can be aborted
    options._timeout = timeout
    group = dist.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return group  # type: ignore[return-value]


def _reduction(operation: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor: libraries know fewer types than torch, and no tensor without a dimension."""
    return tensor.detach().view(-1).view(torch.uint8)


def _in_background(name: str, run: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=run, args=args, name=name, daemon=True).start()


class _Keeper:
    """A thread that holds the last reference to a communicator's groups, and drops it a while after they are not used any more.

    If that blocks, nobody else does. A process that ends in the middle of it would be aborted by the C++ library, so its end
    waits for one that has begun, but not for ever, and none begins after that.
    """

    def __init__(self, owned: tuple[Any, ...]) -> None:
        self._owned: tuple[Any, ...] | None = owned
        self._released = threading.Event()
        self._ending = threading.Event()
        self._begun = threading.Lock()  # held while the groups are destroyed
        atexit.register(self._process_ends)
        _in_background("elasticd-keeper", self._run)

    def release(self) -> None:
        """Nobody uses the groups any more. For any thread."""
        self._released.set()

    def _run(self) -> None:
        self._released.wait()
        if not self._ending.wait(RETIRE_AFTER_S):
            with self._begun:
                if not self._ending.is_set():
                    self._owned = None
        if self._owned is not None:
            threading.Event().wait()  # to the end of the process, which freezes this thread with what it refers to
        atexit.unregister(self._process_ends)

    def _process_ends(self) -> None:
        self._ending.set()
        if self._begun.acquire(timeout=DESTROYED_WITHIN_S):
            self._begun.release()


def _await_all(works: queue.SimpleQueue[_Awaited | None], timeout: timedelta) -> None:
    while (work := works.get()) is not None:
        work.run(timeout)


def _abort_device(groups: _Groups) -> None:
    for group in (groups.device, groups.device_transfer):
        if group is not None:
            group.abort()
