"""Batch scripts: `submit job.sh` reads the options that the script states in comments, as sbatch does.

`#ELASTICCTL` lines have the options of `submit`. `#SBATCH` options that mean the same here are applied, and all others
are named in a note. As with sbatch, only lines before the first command count, and the command line takes precedence.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol import images
from ..protocol.errors import UserError

HEAD_BYTES = 65536
OWN, SLURM = "#ELASTICCTL", "#SBATCH"
SHELL = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")
OTHERS = re.compile(r"#(?:PBS|BSUB|\$)[ \t]+-")
NAME_CHARACTERS = re.compile(r"[^a-z0-9]+")
SLURM_TIME = re.compile(r"(?:(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?|(?P<rest>\d+(?::\d+){0,2}))")
GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?::(?P<count>\d+))?")
SLURM_MEMORY = re.compile(r"(?P<count>[1-9][0-9]{0,8})(?P<unit>[KMGT])?")  # 0, all memory of a server, is not read
SIGNAL = re.compile(r"(?:[BR]+:)?(?:SIG)?(?:USR1|10)(?:@(?P<seconds>\d+))?")
WARN_DEFAULT_S = 60  # default time of --signal, as in Slurm
SHORT = {
    "-J": "job-name",
    "-t": "time",
    "-a": "array",
    "-G": "gpus",
    "-N": "nodes",
    "-n": "ntasks",
    "-c": "cpus-per-task",
    "-C": "constraint",
    "-p": "partition",
    "-o": "output",
    "-e": "error",
    "-d": "dependency",
    "-D": "chdir",
    "-A": "account",
    "-q": "qos",
    "-w": "nodelist",
    "-x": "exclude",
}
# Options of Slurm that are not applied: the reason, or the replacement.
REASONS = {
    "account": "there are no accounts",
    "chdir": "the job runs where it is submitted",
    "container": "it names an OCI bundle of the server: --image NAME",
    "container-mount-home": "the operator of the cluster says which directories containers have",
    "container-mounts": "containers have the job's directory, and those that the operator of the cluster has named",
    "container-workdir": "the job runs where it is submitted",
    "cpus-per-task": "the script runs once on each of its servers",
    "dependency": "it names jobs of Slurm: --after JOB",
    "error": "`elasticctl logs` shows what a job writes",
    "export": "--env",
    "mail-type": "--notify start,end,fail",
    "mail-user": "notices go where the operator of the cluster has said",
    "mem": "--memory 16GiB",
    "mem-per-cpu": "it goes with --cpus-per-task: --memory 16GiB",
    "mem-per-gpu": "--memory is for all GPUs of the script on a server",
    "ntasks": "the script runs once on each of its servers",
    "ntasks-per-node": "the script runs once on each of its servers",
    "output": "`elasticctl logs` shows what a job writes",
    "partition": "there are no partitions: --gpu-type chooses GPUs",
    "qos": "--priority",
    "requeue": "--restarts 3 lets it run again",
}
VARIABLES = {
    "SLURM_ARRAY_TASK_ID": "ELASTICCTL_ARRAY_INDEX",
    "SLURM_PROCID": "RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NODEID": "NODE_RANK",
    "SLURM_NNODES": "NNODES",
    "SLURM_JOB_NUM_NODES": "NNODES",
}
ALIKE = {"nodes", "ntasks", "ntasks-per-node"}  # the value 1 is the default here


@dataclass
class Script:
    """A batch script: its command, the options that it states, as words of a command line, and notes for the user."""

    command: tuple[str, ...]
    options: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def script_of(path: Path) -> Script | None:
    """Return the batch script in a file; None if it does not begin with #!. Raises UserError for wrong options."""
    try:
        with path.open("rb") as file:
            text = file.read(HEAD_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return None
    if not text.startswith("#!"):
        return None
    if "\r\n" in text and SHELL.match(text):
        raise UserError(
            f"{path}: its lines end as in DOS (\\r\\n), which a shell takes for a part of their last words: "
            f"sed -i 's/\\r$//' {shlex.quote(str(path))}"
        )
    first, *lines = text.splitlines()
    program = shlex.split(first[2:])
    if not program:
        return None
    found = Script((*_interpreter(program), str(path)))
    slurm: dict[str, str] = {}
    others: str | None = None
    for number, line in _comments(lines):
        where = f"{path}: line {number}"
        if line.startswith(OWN):
            found.options += _words(where, line.removeprefix(OWN))
        elif line.startswith(SLURM):
            slurm.update(_pairs(where, _words(where, line.removeprefix(SLURM))))
        elif others is None and OTHERS.match(line):
            others = line.strip()
    found.options[:0] = [*_name(path.stem), *_translated(slurm, found.notes)]
    if others is not None:
        found.notes.append(f"{path}: {others!r} and other such lines are not read: only #SBATCH and {OWN} lines are")
    used = [f"{name} (here {ours})" for name, ours in VARIABLES.items() if re.search(rf"\b{name}\b", text)]
    if used:
        found.notes.append(f"{path}: reads {', '.join(used)}, which is not set")
    if re.search(r"^\s*(?:exec\s+)?srun\b", text, re.MULTILINE):
        found.notes.append(f"{path}: calls srun: leave it out, the script's commands run on the job's servers")
    return found


def _interpreter(program: Sequence[str]) -> list[str]:
    """Return the words of a #! line that run a script; `/usr/bin/env` finds the program itself."""
    if Path(program[0]).name != "env" or len(program) < 2:
        return list(program)
    return list(program[2:] if program[1] == "-S" else program[1:])


def _comments(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the comments before the first command, with their numbers."""
    for number, line in enumerate(lines, 2):
        if line.startswith("#"):
            yield number, line
        elif line.strip():
            return


def _words(where: str, text: str) -> list[str]:
    """Return the words of a line up to its comment. As in a shell, # within a word (`nvcr.io#nvidia/pytorch`) begins none."""
    try:
        return list(itertools.takewhile(lambda word: not word.startswith("#"), shlex.split(text)))
    except ValueError:  # a quotation mark in the comment
        pass
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UserError(f"{where}: {text.strip()!r} cannot be split into words: {error}") from None


def _pairs(where: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of an #SBATCH line: long name, and value or ""."""
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name[2:]
        elif name[:2] in SHORT:
            name, value, equals = SHORT[word[:2]], word[2:].removeprefix("="), word[2:]
        else:
            raise UserError(f"{where}: {word!r} is not an option of sbatch")
        if not equals and left and not left[0].startswith("-"):
            value = left.pop(0)
        yield name, value


def _translated(slurm: dict[str, str], notes: list[str]) -> list[str]:
    """Return the corresponding options of `submit`; options without one get a note."""
    left = dict(slurm)
    found = [*_gpus(left), *_amounts(left)]
    for name, translate in _SAME.items():
        if name in left and (words := translate(left[name])):
            del left[name]
            found += words
    found += ["--processes", "per-server"]  # the script runs once per server, not once per GPU
    for name, value in left.items():
        if name in ALIKE and value == "1":
            continue
        shown = f"#SBATCH --{name}{f'={value}' if value else ''}"
        notes.append(f"{shown} is not read: {REASONS.get(name, 'nothing here means the same')}")
    return found


def _gpus(left: dict[str, str]) -> list[str]:
    """Take the options about GPUs out of `left`, and return those of `submit`."""
    each: tuple[str, str] | None = None
    for name in ("gpus-per-node", "gres"):
        value = left.get(name, "").removeprefix("gpu:") if name == "gpus-per-node" else left.get(name, "")
        match = GRES.fullmatch(value if name == "gres" else f"gpu:{value}")
        if name in left and match is not None:
            each = match["count"] or "1", match["type"] or ""
            del left[name]
    nodes = left.get("nodes", "1")
    if each is not None and nodes.isdecimal():
        left.pop("nodes", None)
        count, kind = each
        total = str(int(count) * int(nodes))
        return ["--gpus", total, "--gpus-per-server", count, *(["--gpu-type", kind.upper()] if kind else [])]
    match = GRES.fullmatch(f"gpu:{left['gpus']}") if "gpus" in left else None
    if match is not None:
        del left["gpus"]
        kind = match["type"] or ""
        return ["--gpus", match["count"] or "1", *(["--gpu-type", kind.upper()] if kind else [])]
    tasks = left.get("ntasks", "1")
    if left.get("gpus-per-task", "").isdecimal() and tasks.isdecimal():
        return ["--gpus", str(int(left.pop("gpus-per-task")) * int(tasks))]
    return []


def _amounts(left: dict[str, str]) -> list[str]:
    """Take the options about cores and memory out of `left`, and return those of `submit`. They mean the same while there is
    one task on each server.
    """
    if any(left.get(name, "1") != "1" for name in ("ntasks", "ntasks-per-node")):
        return []
    found = []
    cores = left.get("cpus-per-task", "")
    if re.fullmatch(r"[1-9][0-9]{0,4}", cores):
        del left["cpus-per-task"]
        found += ["--cpus", cores]
    else:
        cores = ""
    for name, count in (("mem", "1"), ("mem-per-cpu", cores)):
        match = SLURM_MEMORY.fullmatch(left.get(name, ""))
        if match is not None and count:
            del left[name]
            found += ["--memory", f"{int(match['count']) * int(count)}{match['unit'] or 'M'}iB"]
    return found


def slurm_time_s(value: str) -> int | None:
    """Return the seconds of Slurm's minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds].

    None: the value is none of these.
    """
    match = SLURM_TIME.fullmatch(value)
    if match is None:
        return None
    if match["rest"] is None:
        days, hours, minutes, seconds = (int(match[part] or 0) for part in "dhms")
    else:
        parts = [int(part) for part in match["rest"].split(":")]
        days, (hours, minutes, seconds) = 0, ((0, *parts, 0)[:3] if len(parts) < 3 else parts)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _time(value: str) -> list[str]:
    seconds = slurm_time_s(value)
    return ["--time", f"{seconds}s"] if seconds else []


def _name(value: str) -> list[str]:
    name = NAME_CHARACTERS.sub("-", value.lower()).strip("-")[:40].strip("-")
    return ["--name", name] if name else []


def _signal(value: str) -> list[str]:
    match = SIGNAL.fullmatch(value)
    return ["--warn", f"{match['seconds'] or WARN_DEFAULT_S}s"] if match is not None else []


def _notify(value: str) -> list[str]:
    known = {"BEGIN": "start", "END": "end", "FAIL": "fail", "ALL": "start,end,fail"}
    words = [known.get(word, "") for word in value.split(",")]
    return ["--notify", ",".join(words)] if all(words) else []


def _image(value: str) -> list[str]:
    """Translate an image of pyxis, `[USER@][REGISTRY#]IMAGE[:TAG]`; a file (PATH) is none here, nor is a user's name."""
    registry, _, name = value.removeprefix("docker://").rpartition("#")
    image = f"{registry or 'docker.io'}/{name}"
    return ["--image", image] if images.is_image(image) and not value.startswith(("/", ".")) else []


_SAME: dict[str, Callable[[str], list[str]]] = {
    "job-name": _name,
    "time": _time,
    "array": lambda value: ["--array", value] if value else [],
    "signal": _signal,
    "constraint": lambda value: ["--gpu-type", value.upper()] if re.fullmatch(r"[\w-]+", value) else [],
    "mail-type": _notify,
    "container-image": _image,
    "no-requeue": lambda value: ["--restarts", "0"],
}
