"""Access of a job's processes to the device files of GPUs, decided by a program that the kernel runs at each attempt to
open one.

Theory of operation
-------------------
Version 2 of cgroups has no files for devices: a program (BPF_PROG_TYPE_CGROUP_DEVICE) is attached to a group and
answers yes or no for each device that a process in it opens or makes. It applies to all children of the group's
processes and stays with the group, also when its agent ends. It takes CAP_SYS_ADMIN, and no controller: it works in a
hybrid, too. The hierarchy of version 1 is not used.

A worker may open the GPUs of *its job* on this server, not its own alone: NCCL and CUDA IPC open those of peers, and
fail without. So when a worker of the job starts or ends, the programs of the others are replaced. Files that are open
then stay open until their process ends.

Of NVIDIA's device files (major number 195) those of other GPUs are closed; the shared ones (nvidiactl, nvidia-uvm,
nvidia-modeset) are open. So are DRM's files of GPUs that are not the job's. All other devices are as their modes say.
Instances of one GPU (MIG) share its device file; their own capabilities (/dev/nvidia-caps) are not judged here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BPF_CALL = {"x86_64": 321, "aarch64": 280}  # number of the system call
PROG_LOAD, PROG_ATTACH = 5, 8  # of enum bpf_cmd
CGROUP_DEVICE_PROGRAM, AT_CGROUP_DEVICE = 15, 6  # of enum bpf_prog_type, bpf_attach_type
CHARACTER_DEVICE = 2  # BPF_DEVCG_DEV_CHAR
NVIDIA, DRM = 195, 226  # major numbers
SHARED_FROM = 254  # NVIDIA's minor numbers from here on belong to no GPU
LOAD_32, AND_32, MOVE, JUMP_EQUAL, JUMP_UNEQUAL, JUMP_FROM, EXIT = 0x61, 0x54, 0xB7, 0x15, 0x55, 0x35, 0x95
REPLACES = 0  # without BPF_F_ALLOW_MULTI: replaces the group's own program. One of a group above applies as well

Node = tuple[int, int]  # major and minor number of a character device
Nodes = Mapping[int, tuple[Node, ...]]  # by a GPU's index; empty: unknown. CPU slots are not included
UNKNOWN: Node = (0, 0)


@dataclass(frozen=True)
class _Held:
    job: str
    gpus: frozenset[int]


class Devices:
    """The device files of the jobs of one server. Its methods may be called from any thread."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}  # by a group's directory

    def learn(self, nodes: Nodes) -> None:
        """Replace the device files of the server's GPUs."""
        with self._lock:
            self._nodes = nodes

    @property
    def told(self) -> bool:
        """Return whether the device files of all GPUs are known."""
        return all(self._nodes.values())

    def close_all(self, directory: str) -> None:
        """Close all GPUs to the processes of a group. Raises OSError."""
        attach(directory, program((), self._of_others(frozenset())))

    def admit(self, directory: str, job: str, gpus: Iterable[int]) -> None:
        """Open the job's GPUs to the worker in this group, which uses the GPUs with these indices. Raises OSError."""
        with self._lock:
            self._held[directory] = _Held(job, frozenset(gpus))
            for gpu in sorted(self._held[directory].gpus):
                if not self._nodes.get(gpu, (UNKNOWN,)):
                    raise OSError(errno.ENODEV, f"the driver does not tell the device file of GPU {gpu}", directory)
            self._renew(job)

    def release(self, directory: str) -> None:
        """Withdraw the GPUs of an ended worker from its job, unless other workers of the job have them. Raises OSError."""
        with self._lock:
            if (held := self._held.pop(directory, None)) is not None:
                self._renew(held.job)

    def _renew(self, job: str) -> None:
        groups = [directory for directory, held in self._held.items() if held.job == job]
        gpus = frozenset(gpu for each in groups for gpu in self._held[each].gpus)
        own = [minor for gpu in sorted(gpus) for major, minor in self._nodes.get(gpu, ()) if major == NVIDIA]
        code = program(own, self._of_others(gpus))
        for directory in groups:
            try:
                attach(directory, code)
            except FileNotFoundError:  # the worker has just ended
                continue

    def _of_others(self, gpus: frozenset[int]) -> list[Node]:
        own = {node for gpu in gpus for node in self._nodes.get(gpu, ())}
        others = {node for gpu, nodes in self._nodes.items() if gpu not in gpus for node in nodes}
        return sorted(node for node in others - own if node[0] != NVIDIA)


def program(own: Iterable[int], others: Iterable[Node]) -> bytes:
    """Return code that opens the NVIDIA GPUs with these minor numbers and closes all other ones, and the nodes
    `others`.

    The code gets a struct bpf_cgroup_dev_ctx (three 32-bit words: access and type, major, minor) and answers 1 (yes) or
    0.
    """
    yes = (_instruction(MOVE, 0, value=1), _instruction(EXIT))
    no = (_instruction(MOVE, 0, value=0), _instruction(EXIT))
    code = [
        *(_instruction(LOAD_32, register, 1, offset) for register, offset in ((2, 0), (3, 4), (4, 8))),
        _instruction(AND_32, 2, value=0xFFFF),
        _instruction(JUMP_EQUAL, 2, offset=2, value=CHARACTER_DEVICE),
        *yes,
    ]
    for major, minor in others:
        code += [_instruction(JUMP_UNEQUAL, 3, offset=3, value=major)]
        code += [_instruction(JUMP_UNEQUAL, 4, offset=2, value=minor), *no]
    code += [_instruction(JUMP_EQUAL, 3, offset=2, value=NVIDIA), *yes]
    code += [_instruction(JUMP_FROM, 4, offset=1, value=SHARED_FROM), _instruction(0x05, offset=2), *yes]
    for minor in own:
        code += [_instruction(JUMP_UNEQUAL, 4, offset=2, value=minor), *yes]
    return b"".join((*code, *no))


def _instruction(operation: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", operation, source << 4 | target, offset, value)


def attach(directory: str, code: bytes) -> None:
    """Attach a program to the group in `directory`, in place of the one before. Raises OSError."""
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"elasticctl")
    count = len(code) // 8
    loading = struct.pack("=IIQQ", CGROUP_DEVICE_PROGRAM, count, ctypes.addressof(text), ctypes.addressof(licence))
    loaded = _bpf(PROG_LOAD, loading.ljust(72, b"\0"), directory)
    try:
        group = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(PROG_ATTACH, struct.pack("=IIII", group, loaded, AT_CGROUP_DEVICE, REPLACES), directory)
        finally:
            os.close(group)
    finally:
        os.close(loaded)


def _bpf(command: int, attributes: bytes, directory: str) -> int:
    number = BPF_CALL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "device files cannot be closed on this kind of processor", directory)
    given = ctypes.create_string_buffer(attributes, len(attributes))
    library = ctypes.CDLL(None, use_errno=True)
    result = int(library.syscall(ctypes.c_long(number), command, given, len(attributes)))
    if result < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"{os.strerror(problem)} (the kernel's bpf call)", directory)
    return result
