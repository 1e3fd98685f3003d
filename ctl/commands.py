"""Analysis of a job's command at submission, before any server runs it: its number of processes, and missing modules.

A script is parsed, never executed. Its interpreter is asked which modules it finds, under the user's own account and
with a time limit.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..protocol.limits import MAX_GPUS
from ..protocol.model import GpuRange, Processes
from ..protocol.texts import gpu_count
from .jobgpus import WantedGpus

LIBRARY = "elasticd"
LIBRARIES = {LIBRARY, "elasticctl"}  # one package under two names
INTERPRETER_S = 3.0  # time for an interpreter to report the modules that it finds
MAX_SCRIPT_BYTES = 4 << 20
MAX_SOURCES = 50  # files of a script that are examined

# Programs that start the processes of one server by themselves, and the modules with which `python -m` does the same.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "colossalai")
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# Programs that run another one, with their options that take the next word as a value.
WRAPPERS = {
    "env": ("-u", "--unset"),
    "nice": ("-n", "--adjustment"),
    "nohup": (),
    "stdbuf": ("-i", "-o", "-e"),
    "setsid": (),
    "timeout": ("-k", "-s"),
}
OPTIONS_WITH_MODULE = re.compile(r"-[bBdEiIOPqsSuvx]*m")  # options of Python, which accepts `-um` for `-u -m`
OPTIONS_WITH_CODE = re.compile(r"-[bBdEiIOPqsSuvx]*c.*", re.DOTALL)
SHELLS_OWN = ("cd", "source", ".", "export", "ulimit", "module")  # commands built into shells
BATCH_LINE = re.compile(rb"^#(?:ELASTICCTL|SBATCH|PBS|BSUB|\$)[ \t]+-.*$", re.MULTILINE)
BATCH_HEAD_BYTES = 16384
MPI = ("mpirun", "mpiexec", "horovodrun", "srun")  # these start processes on other servers by themselves


@dataclass(frozen=True)
class Command:
    """A parsed command, as far as its words reveal its kind."""

    launcher: str = ""  # program that starts its processes on each server; empty: none known
    interpreter: str = ""  # program that runs `script` or `module`; empty: not a Python command
    script: str = ""
    module: str = ""

    @property
    def processes(self) -> Processes:
        """Return how many processes suit the command."""
        return Processes.PER_SERVER if self.launcher else Processes.PER_GPU


def look_at(command: Sequence[str]) -> Command:
    """Return the parsed command without its wrappers (`env A=1`, `nice -n 10`)."""
    words = _unwrapped(command)
    if not words:
        return Command()
    name = Path(words[0]).name
    if name in LAUNCHERS:
        return Command(launcher=name)
    if not name.startswith("python") and name not in ("pypy", "pypy3"):
        return Command()
    rest = words[1:]
    while rest:
        word = rest[0]
        if OPTIONS_WITH_MODULE.fullmatch(word) and len(rest) > 1:
            module = rest[1]
            return Command(module if module in LAUNCHER_MODULES else "", words[0], module=module)
        if word == "-" or OPTIONS_WITH_CODE.fullmatch(word):
            break
        if word in ("-W", "-X"):
            rest = rest[2:]
        elif word.startswith("-"):
            rest = rest[1:]
        else:
            return Command(interpreter=words[0], script=word)
    return Command(interpreter=words[0])


def _unwrapped(command: Sequence[str]) -> list[str]:
    """Return the words from the wrapped program on; none if a wrapper changes the working directory."""
    words = list(command)
    while words and (wrapper := Path(words[0]).name) in WRAPPERS:
        words = words[1:]
        while words and (words[0].startswith("-") or (wrapper == "env" and "=" in words[0])):
            if wrapper == "env" and words[0].startswith(("-C", "--chdir")):
                return []
            words = words[2 if words[0] in WRAPPERS[wrapper] else 1 :]
        if wrapper == "timeout":
            words = words[1:]
    return words


def script_of(command: Sequence[str]) -> str:
    """Return the Python file that Python or a launcher runs; empty: unknown. Arguments of other programs may end in .py
    by chance.
    """
    found = look_at(command)
    script = next((word for word in command if word.endswith(".py")), "") if found.launcher else found.script
    return script if script.endswith(".py") else ""


def ignored_lines(command: Sequence[str], workdir: Path) -> str:
    """Return a sentence about options that a batch script states for another scheduler (#SBATCH, #PBS); "": none."""
    for word in _unwrapped(command)[:2]:
        try:
            with (workdir / word).open("rb") as script:
                head = script.read(BATCH_HEAD_BYTES)
        except (OSError, ValueError):  # ValueError: a word with a zero byte
            continue
        if head.startswith(b"#!") and (found := BATCH_LINE.search(head)):
            line = found[0].decode(errors="replace").strip()
            return (
                f"{word}: {line!r} and other such lines are not read in a command: `elasticctl submit {shlex.quote(word)}` reads "
                "#SBATCH and #ELASTICCTL lines; or say what the job needs by options, such as --gpus 2"
            )
    return ""


def joins(found: Command, workdir: Path, env: Mapping[str, str]) -> bool:
    """Return whether the script calls `elastic.join()`, judged by its imports."""
    return not found.launcher and any(LIBRARIES & imports(path) for path in sources(found, workdir, env))


def copies(command: Sequence[str], gpus: GpuRange, workdir: Path, env: Mapping[str, str]) -> tuple[str, bool]:
    """Return, in a sentence, the effect of a range of GPUs on a command that does not call `elastic.join()`.

    The sentence is "" without a range, or if the command calls `elastic.join()`. Also return whether the script's text
    was read, and does not import the library.
    """
    found = look_at(command)
    if gpus.min == gpus.max or found.module.partition(".")[0] in LIBRARIES or joins(found, workdir, env):
        return "", False
    seen = not found.launcher and bool(sources(found, workdir, env))
    what = found.script or found.module or found.launcher or Path(command[0]).name
    why = f"{what} does not import {LIBRARY}" if seen else f"{what} is not known to call elastic.join()"
    many = f"a process on each of its servers, with {gpus.min} to {gpus.max} GPUs in all, is"
    if not found.launcher:
        many = f"{gpus.min} to {gpus.max} copies of it, one for each GPU, are"
    return f"{why}: {many} started once and never resized; say --gpus {gpus.max} if that is meant", seen


def lacks(command: Sequence[str], workdir: Path, env: Mapping[str, str], here: bool = True) -> str:
    """Return a sentence about modules that a script needs and its interpreter lacks; "": none are known.

    here: the job runs on this machine.
    """
    found = look_at(command)
    script = workdir / found.script
    if found.launcher or not found.script or not os.path.isfile(script) or _finds_elsewhere(command, script):
        return ""
    wanted = imports(script, surely=True)
    gone = missing(found, [module for module in (*sorted(LIBRARIES), "torch") if module in wanted], workdir, env)
    if not gone:
        return ""
    what = " and ".join(gone)
    it = "it" if len(gone) == 1 else "them"
    if not here:
        return (
            f"{found.script} imports {what}, and {found.interpreter} does not find {it} on this machine: "
            "the job fails unless it does on the servers"
        )
    return (
        f"{found.script} imports {what}, and {found.interpreter} does not find {it}: "
        f"activate the environment that has {what}, or name its interpreter"
    )


def _finds_elsewhere(command: Sequence[str], script: Path) -> bool:
    """Return whether the script may find modules outside its interpreter's path, by variables of `env` or its own
    sys.path.
    """
    wrappers = command[: len(command) - len(_unwrapped(command))]
    if any(Path(word).name == "env" for word in wrappers):
        return True
    try:
        text = script.read_bytes() if script.stat().st_size <= MAX_SCRIPT_BYTES else b""
    except OSError:
        return False
    return any(word in text for word in (b"sys.path", b"from sys import", b"addsitedir"))


def unknown_program(program: str) -> str:
    """Return a hint for a program that does not exist, if its name is a common one, such as of a launcher."""
    if program in SHELLS_OWN:
        return ": it is a shell's own word; write bash -c '...' around the whole line"
    if re.fullmatch(r"[A-Za-z_]\w*=.*", program, re.DOTALL):
        return ": set variables with --env, or with env: in a job file"
    if " " in program:
        return ": it is one word here; leave out the quotes, or write bash -c before it"
    if program in ("python", "python3"):
        return "; is an environment active, or does it have another name here?"
    package = {"torchrun": "torch", "accelerate": "accelerate", "deepspeed": "deepspeed"}.get(program)
    if package is None:
        return ""
    return f": it comes with the package {package}; activate the environment that has it"


def gpus_for(command: Sequence[str], gpus: WantedGpus, is_chosen: bool) -> WantedGpus:
    """Return the GPUs that a launcher's own options require. `is_chosen`: the user has chosen the number.

    Launchers other than torchrun use one server unless configured otherwise, so their GPUs are all on one server.
    """
    found, low, high = look_at(command), gpus.range.min, gpus.range.max
    if gpus.per_server is not None or (not found.launcher and not mpi(command)):
        return gpus
    each, servers = processes_of_torchrun(command)
    if not is_chosen and (each or servers):
        low = high = (each or 1) * (servers or 1)
    if each is None and low == high:
        if servers is not None:
            each = low // servers if servers and low % servers == 0 else None
        elif found.launcher not in TORCHRUN:
            each = low
    if each and not (low % each or high % each) and high <= MAX_GPUS:
        return replace(gpus, range=GpuRange(min=low, max=high), per_server=each)
    return gpus


def mpi(command: Sequence[str]) -> str:
    """Return the program's name if it starts processes on other servers by itself (MPI and similar); otherwise ""."""
    name = Path(command[0]).name if command else ""
    return name if name in MPI else ""


def processes_of_torchrun(command: Sequence[str]) -> tuple[int | None, int | None]:
    """Return the processes per server and the servers in torchrun's options. None: not given, or not a number."""
    found = look_at(command)
    if found.launcher not in TORCHRUN:
        return None, None
    return _number(command, "--nproc-per-node", "--nproc_per_node"), _number(command, "--nnodes")


def more_processes(command: Sequence[str], gpus: GpuRange) -> str:
    """Return a sentence about a torchrun that starts more processes on a server than the job has GPUs; "": it does not."""
    each, _ = processes_of_torchrun(command)
    if each is None or each <= gpus.max:
        return ""
    return f"torchrun starts {each} processes on each server, and the job has {gpu_count(gpus.max)}: --gpus {each}"


def _number(command: Sequence[str], *options: str) -> int | None:
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in options:
            text = value if equals else next(iter(command[at + 1 :]), "")
            return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 9 else None
    return None


def sources(found: Command, workdir: Path, env: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the script and the files beside it that it imports, as far as their names reveal them: the script first."""
    first = workdir / found.script if found.script else _of_module(found.module, workdir, env)
    if first is None or not os.path.isfile(first):
        return ()
    files = {first: None}
    queue = [first]
    while queue and len(files) < MAX_SOURCES:
        for name in sorted(imports(queue.pop(0))):
            for beside in (first.parent / f"{name}.py", first.parent / name / "__init__.py"):
                if beside not in files and os.path.isfile(beside):
                    files[beside] = None
                    queue.append(beside)
    return tuple(files)


def _of_module(module: str, workdir: Path, env: Mapping[str, str]) -> Path | None:
    """Return the file of `python -m module`, if it lies in the working directory or in PYTHONPATH."""
    if not module:
        return None
    places = [workdir, *(Path(each) for each in env.get("PYTHONPATH", "").split(":") if each)]
    inside = module.replace(".", "/")
    candidates = [place / name for place in places for name in (f"{inside}.py", f"{inside}/__main__.py")]
    return next((path for path in candidates if os.path.isfile(path)), None)


def imports(script: Path, surely: bool = False) -> frozenset[str]:
    """Return the modules that a script's own text imports, by their top-level names; none if the script cannot be read
    or parsed.

    surely: only modules without which the script cannot start, so none imported in a function, a `try` or an `if`.
    """
    try:
        if script.stat().st_size > MAX_SCRIPT_BYTES:
            return frozenset()
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found: set[str] = set()
    for node in tree.body if surely else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return frozenset(found)


def missing(found: Command, modules: Sequence[str], workdir: Path, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return those of `modules` that a script's interpreter does not find; none if it does not answer in time."""
    interpreter = found.interpreter
    program = str(workdir / interpreter) if os.sep in interpreter else shutil.which(interpreter, path=env.get("PATH"))
    if not program or not modules:
        return ()
    beside = str((workdir / found.script).resolve().parent) if found.script else str(workdir)
    asked = (
        "import importlib.util as u, sys; sys.path[:0] = sys.argv[1:2]; "
        "print(*[m for m in sys.argv[2:] if u.find_spec(m) is None])"
    )
    try:
        answer = subprocess.run(
            [program, "-c", asked, beside, *modules],
            cwd=workdir,
            env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INTERPRETER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
    lacking = answer.stdout.split()
    return tuple(module for module in modules if module in lacking)
