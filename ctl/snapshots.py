"""`submit --snapshot`: the present files of the working directory, packed, for a job that runs in a copy of them.

In a Git repository these are the files that Git tracks or would add: files that `.gitignore` names stay out. Elsewhere
they are all files except tools' outputs (`JUNK`), hidden directories and virtual environments. Links are followed to
files below the directory; other links are left out and reported. Paths to the directory itself are made relative, since
the job must not depend on that directory: words of the command that name a file of the snapshot, and entries of
PYTHONPATH.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ..protocol.errors import PeerError, UserError
from ..protocol.limits import MAX_SNAPSHOT_BYTES, MAX_SNAPSHOT_FILES
from ..protocol.messages import OfferSnapshot, PutSnapshot, SnapshotWanted
from ..protocol.model import JobSpec
from ..protocol.snapshots import File, check_path, pack, part_of
from ..protocol.variables import SUBMITTED_FROM
from .context import Context

JUNK = frozenset(("__pycache__", "node_modules", "wandb", "mlruns", "lightning_logs"))
SENT_WITHIN_S = 60.0  # time limit for one part
GIT_WITHIN_S = 60.0
NAMED = 5  # most files named in an error


class Packed:
    """The packed files of one submission."""

    def __init__(self) -> None:
        self.left_out: list[
            str
        ] = []  # sentences about files that are not in the snapshot about files that are not in the snapshot
        self._data = b""

    def take(self, spec: JobSpec) -> JobSpec:
        """Return the job with a snapshot of its working directory. Raises UserError if the directory cannot be packed."""
        root = Path(spec.workdir)
        files, links = read(root)
        if links:
            some = ", ".join(links[:NAMED]) + (f" and {len(links) - NAMED} more" if len(links) > NAMED else "")
            self.left_out.append(f"the snapshot is without links that lead out of {root}: {some}")
        snapshot, self._data = pack(files)
        known = {file.path for file in files}
        env = {**spec.env, SUBMITTED_FROM: spec.workdir}
        if "PYTHONPATH" in env:
            env["PYTHONPATH"] = os.pathsep.join(_relative(root, each) for each in env["PYTHONPATH"].split(os.pathsep))
        program, *words = spec.command
        if os.sep in program and not os.path.isabs(program) and os.path.normpath(program) not in known:
            program = str(root / program)  # such as .venv/bin/python
        command = (program, *(_in_snapshot(root, word, known) for word in words))
        return replace(spec, command=command, env=env, snapshot=snapshot)

    def send(self, shared: Context, spec: JobSpec) -> None:
        """Send the parts that the controller lacks. Raises UserError, and the errors of `Client.ask`."""
        if spec.snapshot is None:
            return
        wanted = shared.ask(OfferSnapshot(snapshot=spec.snapshot), SnapshotWanted, SENT_WITHIN_S)
        if wanted.parts and not self._data:
            self._data = _packed_again(spec)
        for part in wanted.parts:
            data = part_of(self._data, part)
            shared.ask(PutSnapshot(snapshot=spec.snapshot, part=part, data=data), SnapshotWanted, SENT_WITHIN_S)


def _packed_again(spec: JobSpec) -> bytes:
    """Pack an earlier job's snapshot, which the controller has deleted, again from its directory; return the bytes.

    Raises UserError if the directory has changed.
    """
    root, reason = Path(spec.workdir), ""
    try:
        snapshot, data = pack(read(root)[0])
    except UserError as error:
        snapshot, data, reason = None, b"", f" ({error})"
    if snapshot == spec.snapshot:
        return data
    raise UserError(
        f"the snapshot of the earlier job is kept no longer, and {root} does not have its files any more{reason}: put them "
        "back, or take a new one with --snapshot"
    )


def read(root: Path) -> tuple[list[File], list[str]]:
    """Return the files of the directory `root` that belong into a snapshot, and the links left out. Raises UserError."""
    sizes: dict[str, int] = {}
    links: list[str] = []
    paths = dict.fromkeys(_known_to_git(root) if _is_in_git(root) else _walk(root))
    inside = os.path.realpath(root)
    for path in paths:
        full = root / path
        try:
            found = full.stat()
            leads_out = not os.path.realpath(full).startswith(inside.rstrip(os.sep) + os.sep)
            regular = stat.S_ISREG(found.st_mode)
            if leads_out or (full.is_symlink() and not regular):  # the file itself is a link, or a directory above it
                links.append(path)
            elif regular:
                sizes[path] = found.st_size
        except FileNotFoundError:
            if full.is_symlink():
                links.append(path)
        except OSError as error:
            raise UserError(f"--snapshot: {full}: {error.strerror}") from None
    _check_size(root, sizes)
    try:
        return [_file(root, path) for path in sorted(sizes)], links
    except OSError as error:
        raise UserError(f"--snapshot: {error.filename}: {error.strerror}") from None
    except PeerError as error:
        raise UserError(f"--snapshot: {error}") from None


def _file(root: Path, path: str) -> File:
    check_path(path)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"--snapshot: {path!r}: the name of this file is not UTF-8") from None
    full = root / path
    return File(path, os.access(full, os.X_OK), full.read_bytes())


def _check_size(root: Path, sizes: dict[str, int]) -> None:
    total = sum(sizes.values())
    if not sizes:
        raise UserError(f"--snapshot: {root} has no files that belong into one")
    if len(sizes) > MAX_SNAPSHOT_FILES:
        raise UserError(
            f"--snapshot: {root} has {len(sizes)} files, and a snapshot has at most {MAX_SNAPSHOT_FILES}: submit from the "
            "directory of the code, or name the others in .gitignore (of a Git repository)"
        )
    if total > MAX_SNAPSHOT_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:NAMED]
        named = ", ".join(f"{path} ({sizes[path] / (1 << 20):.1f} MiB)" for path in largest)
        raise UserError(
            f"--snapshot: the files of {root} have {total / (1 << 20):.0f} MiB, and a snapshot has at most "
            f"{MAX_SNAPSHOT_BYTES >> 20}. The largest: {named}. Name them in .gitignore (of a Git repository), or move them"
        )


def _is_in_git(root: Path) -> bool:
    return any((each / ".git").exists() for each in (root, *root.parents))


def _known_to_git(root: Path) -> Iterator[str]:
    """Yield the files that Git tracks or would add below `root`, in submodules too. Raises UserError if Git cannot list
    them.
    """
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=GIT_WITHIN_S)
    except FileNotFoundError:
        raise UserError(
            f"--snapshot: {root} is in a Git repository, and there is no git here to tell what .gitignore names"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"--snapshot: git has not listed the files of {root} within {GIT_WITHIN_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"--snapshot: git cannot list the files of {root}: {lines[0]}")
    for name in done.stdout.split(b"\0"):
        path = os.fsdecode(name).rstrip("/")
        if path and (root / path).is_dir() and not (root / path).is_symlink():  # a repository within this one
            inner = _known_to_git(root / path) if (root / path / ".git").exists() else _walk(root / path)
            yield from (f"{path}/{each}" for each in inner)
        elif path:
            yield path


def _walk(root: Path) -> Iterator[str]:
    for directory, inner, names in os.walk(root):
        here = os.path.relpath(directory, root)
        inner[:] = sorted(name for name in inner if not _is_junk(Path(directory) / name))
        # Links to directories are not followed.
        linked = [name for name in inner if (Path(directory) / name).is_symlink()]
        for name in sorted([*names, *linked]):
            if not name.endswith((".pyc", ".pyo")):
                yield os.path.normpath(os.path.join(here, name))


def _is_junk(directory: Path) -> bool:
    name = directory.name
    return name in JUNK or name.startswith(".") or name.endswith(".egg-info") or (directory / "pyvenv.cfg").exists()


def _relative(root: Path, entry: str) -> str:
    """Return an entry of a search path, made relative to `root` if it lies there."""
    if entry == str(root) or entry.startswith(f"{root}{os.sep}"):
        return os.path.relpath(entry, root)
    return entry


def _in_snapshot(root: Path, word: str, known: Sequence[str] | set[str]) -> str:
    """Return a word of the command, made relative to `root` if it is the absolute path of a file in the snapshot."""
    if not os.path.isabs(word):
        return word
    found = os.path.relpath(os.path.realpath(word), os.path.realpath(root))
    return found if found in known else word
