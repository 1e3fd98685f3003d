"""Communicator of one generation: collectives among its workers, and transfers of state between two of them.

Communicators are process groups without a global default group. So the next one is built in a background thread while the
current one is in use, and switching is the exchange of a pointer (design: worker-runtime 4). They differ from the usual use in
five points:

* *No wait blocks indefinitely.* When a worker dies, only its direct peers get an error; the others would wait until a timeout.
  `wait` polls for completion, and checks a flag that `abort` sets from the control thread. An abandoned operation still owns its
  tensors: they must not be used again.
* *State transfers have their own connections.* A second group carries `send` and `receive`, so that hundreds of megabytes on
their way to a joiner do not delay the gradients of a step. Gloo reports a point-to-point operation as completed only to a
thread that waits for it, so one thread per direction and peer does.
* *The host waits for a device only where it must.* Later kernels can be ordered after an operation that still runs there, so
`poll` returns True at once. Only the update, which cannot be undone, has to `wait` (docs/design/gpus.md).
* *The device reports when this worker's own part is done.* When the host reaches the step's reduction, kernels are issued but not
  completed. A mark (CUDA event) is recorded behind the last kernel that depends on no other worker, and `wait` queries it.
* *Groups are destroyed in another thread.* That takes 10 ms, or forever where an operation is stuck. A daemon thread, the keeper,
  owns a communicator's groups; at the end of the process it is frozen (`ending`) together with them.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from ...protocol import exits
from ...protocol.errors import ElasticError, OperatorError
from ...protocol.times import ABORT_TIMEOUT_S
from ...runtime.adapters import usable
from ..ending import end_process
from .groups import Groups, add_device_groups, build_host_groups, gpu_identity, nccl, shield
from .rendezvous import Rendezvous, RendezvousCancelled, RendezvousStore

log = logging.getLogger(__name__)

__all__ = ["Communicator", "CommunicatorBroken", "Rendezvous", "RendezvousCancelled", "RendezvousStore"]

SPIN_S = 50e-6  # measured: half the time of a small operation on the same machine, and less CPU time than sleeping
POLL_FIRST_S = 20e-6
POLL_GROWTH = 1.5
POLL_LAST_S = 1e-3
POLL_LAST_DEVICE_S = 100e-6  # short, as a device idles until the host notices that it is done
RETIRE_AFTER_S = 1.0  # a peer may still read the last data sent; closing at once can reset the connection
DESTROYED_WITHIN_S = 5.0


class CommunicatorBroken(ElasticError):
    """A peer is lost, or the communicator was aborted: no operation on it can succeed any more."""


class Mark(Protocol):
    """A position in the queue of work issued to a device, such as a CUDA event."""

    def query(self) -> bool:
        """Return whether the device has reached it. Does not block."""


NewMark = Callable[[], Mark]


def mark_on_gpu() -> Mark:
    """Record a mark behind all kernels issued on the current stream so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


class _Done(dist.Work):
    """Completed operation of a communicator with one worker."""

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


class _Awaited(dist.Work):
    """Point-to-point operation that a thread waits for, because Gloo does not report its completion otherwise.

    It holds a reference to its tensor, which Gloo's operation does not: data may still arrive after it was abandoned.
    """

    def __init__(self, work: dist.Work, tensor: torch.Tensor) -> None:
        super().__init__()
        self._work: dist.Work | None = work
        self._tensor: torch.Tensor | None = tensor
        self._error: str | None = None
        self._completed = threading.Event()

    def run(self, timeout: timedelta) -> None:
        assert self._work is not None
        try:
            self._work.wait(timeout)
        except RuntimeError as error:
            self._error = str(error)
        self._work = self._tensor = None
        self._completed.set()

    def is_completed(self) -> bool:
        return self._completed.is_set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._completed.wait()
        if self._error is not None:
            raise RuntimeError(self._error)
        return True


class _OnDevice(dist.Work):
    """Operation that is a kernel on a device: later kernels can be ordered after it before it is completed."""

    def __init__(self, work: dist.Work) -> None:
        super().__init__()
        self._work = work

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self._work.wait()

    def order(self) -> None:
        """Order kernels issued on the current stream from now on after this operation."""
        self._work.block_current_stream()


class Communicator:
    """Operations among the workers of one generation. Created by `build` or `alone`.

    Operations return a work at once, to be passed to `wait`; all workers call the collectives in the same order. Operations and
    `wait` are for one thread; `abort` and `retire` may be called from any thread.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        groups: Groups | None,
        timeout_s: float,
        keep: tuple[Any, ...],
        new_mark: NewMark | None = None,
        abort_within_s: float = ABORT_TIMEOUT_S,
    ) -> None:
        """new_mark: given where collectives run on a device. abort_within_s: limit on an abort, after which this process
        exits."""
        self.rank = rank
        self.size = size
        self._groups = groups
        self._timeout = timedelta(seconds=timeout_s)
        self._abort_within_s = abort_within_s
        self._aborted = threading.Event()
        self._aborting = threading.Lock()
        self._starting = threading.Lock()  # not held by `abort`, because a query of a stuck device may block
        self._in_flight: deque[_OnDevice] = deque()  # keep their tensors alive while kernels use them
        self._started: deque[dist.Work] = deque()  # collectives: dropping the last reference to one may block
        self._new_mark = new_mark
        self._mark: Mark | None = None  # behind this worker's own part of the step
        self._computed: Callable[[], None] | None = None  # called when the device has reached the mark
        self._keeper: _Keeper | None = None
        self._waiters: dict[tuple[str, int], queue.SimpleQueue[_Awaited | None]] = {}
        if groups is not None:
            self._keeper = _Keeper(groups, self._started, keep)

    @classmethod
    def alone(cls) -> Communicator:
        """Return the communicator of a single worker, without any process group."""
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
        device: torch.device | None = None,
    ) -> Communicator:
        """Meet the other members in `store` and connect to them. Blocks; all members call it at about the same time.

        backend: "gloo", or "nccl" for CUDA tensors in addition. address: the IP address at which peers reach this worker.
        timeout_s: time limit of an operation, even if it is not aborted. device: of NCCL; None: the only visible one.
        Raises RendezvousCancelled if the store was cancelled, CommunicatorBroken if the other members cannot be reached in time,
        OperatorError if two members have the same GPU.
        """
        if size == 1:
            store.close()
            return cls.alone()
        timeout, new_mark = timedelta(seconds=timeout_s), None
        try:
            groups = build_host_groups(store, rank, size, address, timeout)
            if backend == "nccl":
                shield(os.environ)
                gpu = device or torch.device("cuda", 0)
                layers = ",".join(sorted({each.link_layer for each in usable(os.environ)}))
                groups = add_device_groups(groups, store, rank, size, timeout, gpu, gpu_identity(gpu), nccl, layers)
                new_mark = mark_on_gpu
            elif backend != "gloo":
                raise OperatorError(f"there is no backend {backend!r}: use gloo or nccl")
        except (RuntimeError, TimeoutError) as error:
            if store.cancelled:
                raise RendezvousCancelled(str(error).partition("\n")[0]) from None
            raise CommunicatorBroken(f"cannot connect rank {rank} of {size}: {error}".partition("\n")[0]) from error
        finally:
            store.close()
        return cls(rank, size, groups, timeout_s, (store,), new_mark)

    # -- its end

    @property
    def aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        """Abandon all operations: every wait, now and later, raises CommunicatorBroken. For any thread.

        If NCCL does not end its operations on the device in time, this process exits: its kernels may spin on the device forever,
        so the worker could not train on it again. The other workers handle that as the loss of a worker, and continue.
        """
        with self._aborting:
            if self._aborted.is_set():
                return
            self._aborted.set()
        groups, in_flight = self._groups, self._in_flight
        self._in_flight = deque()
        if groups is not None and groups.device is not None:
            # NCCL's kernels would spin on the device forever; Gloo's operations stay in threads that no other thread waits for.
            _in_background("elasticd-abort", _abort, groups, in_flight, self._abort_within_s)

    def retire(self) -> None:
        """Release the groups, which are destroyed in the background after RETIRE_AFTER_S. For any thread."""
        self._groups = None
        for waiter in list(self._waiters.values()):
            waiter.put(None)
        if self._keeper is not None:
            self._keeper.release()

    # -- this worker's own part of a step

    def part_begins(self) -> None:
        """Begin this worker's own part: kernels issued until an operation is ordered after other workers' data."""
        self._mark = self._computed = None

    def part_issued(self, computed: Callable[[], None]) -> None:
        """End this worker's own part. `computed` is called when it is done: at once, or on a device in a later `wait`."""
        if self._new_mark is None:
            computed()
            return
        self._set_mark()
        self._computed = computed

    def _set_mark(self) -> None:
        if self._mark is None and self._new_mark is not None:
            self._mark = self._new_mark()

    def _look_at_mark(self) -> None:
        if self._computed is not None and self._mark is not None and self._mark.query():
            computed, self._computed = self._computed, None
            computed()

    # -- operations

    def wait(self, work: dist.Work | None) -> None:
        """Wait until `work`, if any, is completed. Raises CommunicatorBroken if it failed or the communicator was aborted."""
        if work is None:
            return
        pause_s, longest_s = POLL_FIRST_S, POLL_LAST_DEVICE_S if isinstance(work, _OnDevice) else POLL_LAST_S
        spins_until = time.perf_counter() + SPIN_S
        while not self._aborted.is_set() and not work.is_completed():
            self._look_at_mark()
            if time.perf_counter() < spins_until:
                os.sched_yield()
            else:
                time.sleep(pause_s)
                pause_s = min(pause_s * POLL_GROWTH, longest_s)
        if self._aborted.is_set():
            raise CommunicatorBroken("abandoned")
        try:
            work.wait()  # completed already: raises its error, if any, and orders the current CUDA stream after it
        except RuntimeError as error:
            raise CommunicatorBroken(str(error).partition("\n")[0]) from error

    def poll(self, work: dist.Work) -> bool:
        """Return whether operations issued now may use the result of `work`. Does not block. Raises CommunicatorBroken as `wait`.

        On a device that is so at once, as later kernels can be ordered after it. Only `wait` shows that it has not failed, so no
        irreversible operation may be issued before.
        """
        if self._aborted.is_set():
            raise CommunicatorBroken("abandoned")
        if work.is_completed():
            self.wait(work)
            return True
        if isinstance(work, _OnDevice):
            self._set_mark()  # kernels issued from now on depend on other workers
            work.order()
            return True
        return False

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """Sum `tensor` over all ranks, in place."""
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return self._collective(tensor, lambda group: group.allreduce([real], _reduction(dist.ReduceOp.SUM)))

    def all_reduce_max(self, tensor: torch.Tensor) -> dist.Work:
        """Take the elementwise maximum of `tensor` over all ranks, in place."""
        return self._collective(tensor, lambda group: group.allreduce([tensor], _reduction(dist.ReduceOp.MAX)))

    def broadcast(self, tensor: torch.Tensor, root: int) -> dist.Work:
        """Copy the contiguous `tensor` of rank `root` to all ranks."""
        return self._collective(tensor, lambda group: group.broadcast(_as_bytes(tensor), root))

    def all_to_all(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: list[int], in_splits: list[int]
    ) -> dist.Work:
        """Send `in_splits[r]` rows of `inp` to each rank r, and receive `out_splits[r]` rows of `out` from it."""
        if self.size == 1:
            out.copy_(inp)
        to, of = _rows_as_bytes(out), _rows_as_bytes(inp)
        return self._collective(out, lambda group: group.alltoall_base(to, of, out_splits, in_splits))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> dist.Work:
        """Gather `inp` of all ranks into `out`, in rank order."""
        if self.size == 1:
            out.copy_(inp)
        return self._collective(out, lambda group: group._allgather_base(_as_bytes(out), _as_bytes(inp)))

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """Send `tensor` to `rank`, which calls `receive` with the same tag. Any dtype; contiguous, not empty, unchanged until
        completion."""
        return self._transfer(tensor, "send", rank, lambda group: group.send([_as_bytes(tensor)], rank, tag))

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """Receive the tensor that `rank` sends with this tag into `tensor`."""
        return self._transfer(tensor, "receive", rank, lambda group: group.recv([_as_bytes(tensor)], rank, tag))

    def _collective(self, tensor: torch.Tensor, start: Callable[[dist.ProcessGroup], dist.Work]) -> dist.Work:
        if self.size == 1:
            return _Done()
        work = self._start(self._present().collective(tensor), start)
        if not isinstance(work, _OnDevice):  # operations on a device are kept in `_in_flight`
            while self._started and self._started[0].is_completed():
                self._started.popleft()
            self._started.append(work)
        return work

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

    def _present(self) -> Groups:
        groups = self._groups
        if groups is None or self._aborted.is_set():
            raise CommunicatorBroken("abandoned")
        return groups

    def _start(self, group: dist.ProcessGroup, start: Callable[[dist.ProcessGroup], dist.Work]) -> dist.Work:
        try:
            work = start(group)
        except RuntimeError as error:  # the connection is already lost
            raise CommunicatorBroken(str(error).partition("\n")[0]) from error
        groups = self._groups
        if groups is None or not groups.is_on_device(group):
            return work
        on_device = _OnDevice(work)
        with self._starting:
            while self._in_flight and self._in_flight[0].is_completed():
                self._in_flight.popleft()
            self._in_flight.append(on_device)
        return on_device

    def _waiter(self, direction: str, peer: int) -> queue.SimpleQueue[_Awaited | None]:
        waiter = self._waiters.get((direction, peer))
        if waiter is None:
            waiter = self._waiters[direction, peer] = queue.SimpleQueue()
            _in_background(f"elasticd-{direction}-{peer}", _await_all, waiter, self._timeout)
        return waiter


def _reduction(operation: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's memory as bytes: Gloo and NCCL know fewer dtypes than torch, and no 0-d tensors."""
    return tensor.detach().view(-1).view(torch.uint8)


def _rows_as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's memory as bytes, shape (rows, bytes per row)."""
    row_bytes = tensor.element_size() * math.prod(tensor.shape[1:])
    return _as_bytes(tensor).view(tensor.shape[0], row_bytes)


def _in_background(name: str, run: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=run, args=args, name=name, daemon=True).start()


class _Keeper:
    """Thread that holds the last reference to a communicator's groups, and destroys them some time after their release.

    So a destruction that blocks holds up no other thread. A process that exits during a destruction would be aborted by the C++
    library; therefore the exit waits for one in progress, with a limit, and none begins after that.
    """

    def __init__(self, groups: Groups, works: deque[dist.Work], needed: tuple[Any, ...]) -> None:
        """works: operations of the groups, abandoned ones included; dropped here, too. needed: objects that the groups use."""
        self._owned: tuple[Groups, tuple[Any, ...]] | None = (groups, needed)
        self._works = works
        self._released = threading.Event()
        self._ending = threading.Event()
        self._begun = threading.Lock()  # held while the groups are destroyed
        atexit.register(self._process_ends)
        _in_background("elasticd-keeper", self._run)

    def release(self) -> None:
        """Release the groups. For any thread."""
        self._released.set()

    def _run(self) -> None:
        self._released.wait()
        if not self._ending.wait(RETIRE_AFTER_S):
            with self._begun:
                if not self._ending.is_set() and self._owned is not None:
                    groups, _ = self._owned
                    # No operation runs there any more, and freeing one group waits for the other.
                    if groups.abort_device():
                        del groups
                        self._owned = None
                        self._works.clear()
                    else:  # training does not need them, so it continues, with less of the device's memory
                        log.warning("the library does not destroy a communicator that is not used any more: it is kept")
        if self._owned is not None:
            threading.Event().wait()  # until the end of the process, which freezes this thread and its objects
        atexit.unregister(self._process_ends)

    def _process_ends(self) -> None:
        self._ending.set()
        if self._begun.acquire(timeout=DESTROYED_WITHIN_S):
            self._begun.release()


def _await_all(works: queue.SimpleQueue[_Awaited | None], timeout: timedelta) -> None:
    while (work := works.get()) is not None:
        work.run(timeout)


def _abort(groups: Groups, in_flight: deque[_OnDevice], within_s: float) -> None:
    """Abort the device groups, or exit. in_flight: kept alive until no kernel uses their tensors any more."""
    if not groups.abort_device(within_s):
        end_process(
            exits.HUNG, f"the library has not ended this worker's collectives within {within_s:.0f} s of an abort"
        )
    in_flight.clear()
