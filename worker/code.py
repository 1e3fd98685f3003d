"""Comparison of code: a job trains with the code with which it began, on every worker and after every restart.

A joining worker runs the script from its beginning, in its present version. If the script has been edited meanwhile, or
if the worker's server has another copy or another version of torch, the worker would compute other results than the
workers that it joins. So each worker describes its code when its loop begins: a digest of the script and of each module
that it has imported from the working directory or from the script's own, the versions of Python and torch, and the type
of device. The description of the job's first worker is the job's: it travels with the training state, to joining
workers and into checkpoints. A worker that is about to take over a state compares first, and ends with the exit code
`exits.OTHER_CODE` if its own code differs.

Only files that both have imported are compared; a module that only one of them has, such as the leader's logger, is no
difference. A file is named by its path below the working directory, or else below the script's: so a script that is
called by an absolute path from a copy of the directory (a snapshot) has the same name in each copy. Installed packages
(`site-packages`), virtual environments, hidden directories, Python's own library and this package are left out. A
file's digest is that of the first look, which `elastic.join()` takes: the file may be edited while the process starts.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .source.own_code import directories, is_own_file

LARGEST_FILE_BYTES = 32 << 20  # of larger files only the size is compared
MOST_FILES = 4096
NAMED = 3  # number of files named in a message
ANY = "any"  # the value of ELASTIC_CODE that turns the comparison off
REPORTED = ("numpy", "torchvision", "transformers", "accelerate", "lightning", "datasets")  # versions, if imported
TEXT = "the text behind python -c"


class OtherCode(Exception):
    """This worker's code is not the job's. The message names the difference and the remedy."""


class Code:
    """The code that this process has imported. For the training thread."""

    def __init__(self, device: torch.device, compared: bool = True, snapshot: bool = False) -> None:
        """compared: False if the job accepts any code. snapshot: the working directory is a copy that was made for the job."""
        self._compared = compared
        self._snapshot = snapshot
        self._device = device.type
        self._files: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._began_s = time.time()
        self._job: dict[str, Any] | None = None  # the job's description; None: this worker's own is used
        self.look()

    def look(self) -> None:
        """Describe modules that have been imported since the last look."""
        here = _working_directory()
        main = sys.modules.get("__main__")
        own = directories()
        if _file_of(main) is None and main is not None and "-c" in sys.orig_argv:
            text = sys.orig_argv[sys.orig_argv.index("-c") + 1 :][:1]
            self._files.setdefault(TEXT, _digest("".join(text).encode()))
        for module in list(sys.modules.values()):
            file = _file_of(module)
            if file is None or not is_own_file(file, own):
                continue
            path = os.path.abspath(file)
            name = self._name(path, here, own)
            if name not in self._files and len(self._files) < MOST_FILES and (digest := _digest_of(path)):
                self._files[name], self._paths[name] = digest, path

    def _name(self, path: str, here: str, own: tuple[str, ...]) -> str:
        for directory in (here.rstrip(os.sep) + os.sep, *own):
            name = path.removeprefix(directory)
            if name != path and self._paths.get(name, path) == path:
                return name
        return os.path.relpath(path, here)

    def description(self) -> dict[str, Any]:
        """Return the description of the job's code as plain values.

        Keys: `files` (digests by name), `versions`, `device`, `began_s` (Unix time).
        """
        if self._job is not None:
            return self._job
        found = {name: getattr(sys.modules.get(name), "__version__", None) for name in REPORTED}
        return {
            "files": dict(self._files),
            "versions": {
                "python": ".".join(map(str, sys.version_info[:3])),
                "torch": str(torch.__version__),
                **{name: str(version) for name, version in found.items() if version is not None},
            },
            "device": self._device,
            "began_s": self._began_s,
        }

    def take(self, header: Mapping[str, Any]) -> None:
        """Accept the description in a training state as the job's. Raises OtherCode if this worker's code differs."""
        job = header.get("code")
        if job is None:  # a checkpoint of an older version has no description
            return
        if self._compared and (wrong := self._difference(job)):
            raise OtherCode(wrong)
        self._job = dict(job)

    def other_versions(self, job: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Return packages, and Python, with versions that differ between this worker and the job's beginning: (here,
        there) by name.
        """
        self._job, mine = None, self._job
        try:
            own = self.description()["versions"]
        finally:
            self._job = mine
        theirs = job.get("versions", {})
        return {name: (own[name], theirs[name]) for name in own if name in theirs and own[name] != theirs[name]}

    def _difference(self, job: Mapping[str, Any]) -> str:
        """Describe the difference in words; "": none that excludes this worker."""
        if job["device"] != self._device:
            return f"this worker computes on {self._device}, and the job began on {job['device']}: ask for GPUs of one kind"
        for name, (here, there) in self.other_versions(job).items():
            if name == "torch" or (name == "python" and here.split(".")[:2] != there.split(".")[:2]):
                words = f"{name} is {here} here, and the job began with {there}"
                return f"{words}: install one version on all servers of the job"
        theirs = job["files"]
        differing = sorted(name for name, digest in self._files.items() if theirs.get(name, digest) != digest)
        if not differing:
            return ""
        more = f" and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
        names = ", ".join(differing[:NAMED]) + more
        return (
            f"{names}: not the code that the job began with; {self._how(differing[0], job)}. Put it back, or submit the new code "
            "as a new job (`submit --resume JOB --with-new-code` goes on from this one; ELASTIC_CODE=any in a job's environment "
            "takes any code)"
        )

    def _how(self, name: str, job: Mapping[str, Any]) -> str:
        path, began_s = self._paths.get(name), float(job.get("began_s", 0.0))
        if self._snapshot and path is not None and path.startswith(_working_directory().rstrip(os.sep) + os.sep):
            return "the job's snapshot has another version"  # whose files are as old as the copy
        try:
            changed_s = os.stat(path).st_mtime if path is not None else 0.0
        except OSError:
            changed_s = 0.0
        if changed_s > began_s > 0.0:
            return f"edited at {time.strftime('%H:%M:%S', time.localtime(changed_s))}, after the job had begun"
        return "this server has another copy"


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.path.dirname(_file_of(sys.modules.get("__main__")) or "/")


def _file_of(module: Any) -> str | None:
    """Return the file of an imported module; None if the module has no file."""
    try:
        path = vars(module).get("__file__")
    except TypeError:  # `sys.modules` may contain objects that are no modules
        return None
    return path if isinstance(path, str) and path else None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _digest_of(path: str) -> str:
    """Return the digest of a file's contents; "" if the file cannot be read any more."""
    try:
        size = os.path.getsize(path)
        return f"{size} bytes" if size > LARGEST_FILE_BYTES else _digest(Path(path).read_bytes())
    except OSError:
        return ""
