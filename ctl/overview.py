"""Output of `elasticctl` without a command: one screen with the commands that users need first; and hints for other
tools' commands and options.

`--help` has every command with a line, and each command's own `--help` its options; neither fits a terminal of 24
lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass

WIDTH = 80

# Commands of Slurm, PBS, Kubernetes, SkyPilot, dstack, Ray, Docker and the shell, with the corresponding command of elasticctl.
OTHER_TOOLS = {
    "apply": "submit",
    "create": "submit",
    "dashboard": "web",
    "delete": "cancel",
    "describe": "status JOB",
    "get": "status",
    "help": "--help",
    "job": "submit`, `status`, `logs` or `cancel",
    "jobs": "status",
    "kill": "cancel",
    "launch": "run` or `submit",
    "list": "status",
    "ls": "status",
    "nodes": "servers",
    "ps": "status",
    "qdel": "cancel",
    "qstat": "status",
    "qsub": "submit",
    "queue": "status",
    "rm": "cancel",
    "sacct": "history",
    "sattach": "attach",
    "sbatch": "submit",
    "scancel": "cancel",
    "scontrol": "status JOB`, `hold`, `release`, `pause`, `requeue` or `drain",
    "show": "status JOB",
    "sinfo": "servers",
    "squeue": "status",
    "ssh": "exec JOB -- bash",
    "srun": "run",
    "start": "submit` or `resume",
    "stop": "cancel",
    "suspend": "pause",
    "tail": "logs",
    "undrain": "uncordon",
    "shell": "exec JOB -- bash",
    "watch": "status -w",
}

# Options of the same tools for a submission, with the corresponding ones of `submit`.
SUBMISSION = {
    "--accelerators": "--gpus, and --gpu-type",
    "--begin": "`hold JOB` behind it, and `release JOB` when it may begin",
    "--chdir": "workdir in a job file",
    "--constraint": "--gpu-type",
    "--depends-on": "--after",
    "--dependency": "--after JOB, or --after JOB:any",
    "-d": "--after JOB, or --after JOB:any",
    "--env-file": "--env NAME=VALUE, or env in a job file; --secret NAME=FILE for secrets",
    "--gpus-per-node": "--gpus-per-server",
    "--gres": "--gpus",
    "--job-name": "--name",
    "--max-restarts": "--restarts",
    "--nodes": "--gpus, and --gpus-per-server",
    "--ntasks": "--gpus",
    "--num-nodes": "--gpus, and --gpus-per-server",
    "--param": "--sweep FILE, with lists such as `lr: [0.1, 0.01]`",
    "--requeue": "--restarts",
    "--signal": "--warn 60s, with --time",
    "--time-limit": "--time",
    "--working-dir": "workdir in a job file",
    "-C": "--gpu-type",
    "-G": "--gpus",
    "-J": "--name",
    "-N": "--gpus, and --gpus-per-server",
    "-a": "--array",
    "-e": "--env",
    "-i": "`run --pty bash`; beside a job that runs `exec JOB -- bash`",
    "-n": "--gpus",
    "-t": "--time 2h",
}

# By command of elasticctl: options of other tools, and the corresponding ones here.
OTHER_OPTIONS = {
    "submit": SUBMISSION,
    "run": SUBMISSION,
    "scale": {"--replicas": "the number alone, `scale JOB 2`", "--current-replicas": "`scale JOB 2`"},
    "logs": {
        "--container": "--worker",
        "-c": "--worker",
        "--lines": "--tail",
        "--previous": "--attempt",
        "-p": "--attempt",
    },
    "exec": dict.fromkeys(
        ("-i", "-t", "--tty", "--stdin"), "`exec JOB -- bash`: the shell has a terminal if you have one"
    ),
    "status": {"-A": "--all", "-o": "--json", "-u": "--mine", "--me": "--mine", "--user": "--mine"},
    "cancel": {"-u": "--all", "--me": "--all", "--user": "--all", "-t": "--state", "--force": "--now", "-f": "--now"},
}


# By command: what to type in place of one word too many.
ONE_WORD_MORE = {
    "explain": "`explain` is about one job",
    "history": "`history` names no job: `status JOB` shows one that is over, `status 'sweep-*' --all` several",
    "logs": "`logs` shows one job; `-f` follows it",
    "status": "`status` takes one name, or a pattern for several: `status 'sweep-*'`",
}


@dataclass(frozen=True)
class Group:
    """A group of commands: some with a line each, the others by name."""

    title: str
    lines: dict[str, str]
    names: tuple[str, ...] = ()


GROUPS = (
    Group(
        "Jobs",
        {
            "submit": "submit JOB.yaml, or a command after --; prints the job's id",
            "run": "the same, and show its output to its end (attach: come back to it)",
            "status": "the jobs, or one in full (-w: live)",
            "logs": "what a job has written (-f: as it comes)",
            "explain": "why a job waits, or has no more GPUs, and what would change that",
            "scale": "set how many GPUs a job has",
            "cancel": "end jobs",
        },
        (
            "attach",
            "history",
            "pause",
            "resume",
            "hold",
            "release",
            "requeue",
            "checkpoint",
            "export",
            "exec",
            "wait",
            "events",
            "top",
            "web",
            "profile",
            "check",
        ),
    ),
    Group(
        "Cluster",
        {"up": "a whole cluster on this machine, for a try; down stops it", "doctor": "what is wrong on this machine"},
        ("down", "servers", "topology", "policy", "quota", "report", "simulate", "login", "version"),
    ),
    Group(
        "For operators",
        {},
        ("drain", "cordon", "uncordon", "lend", "reclaim", "keys", "config", "store", "controllers"),
    ),
)


def screen(known: Collection[str]) -> str:
    """Return the text, with those commands that exist."""
    return "\n".join(_lines(known))


def _lines(known: Collection[str]) -> Iterator[str]:
    yield "Run training jobs that grow, shrink and survive on your own GPU servers."
    yield "Usage: elasticctl COMMAND ..."
    placed: set[str] = set()
    for group in GROUPS:
        yield ""
        yield group.title
        for name, text in group.lines.items():
            if name in known:
                yield f"  {name:<8}  {text}"
        names = [name for name in group.names if name in known]
        placed |= {*group.lines, *names}
        if group is GROUPS[-1]:
            names += sorted(set(known) - placed)  # commands that belong to no group
        yield from textwrap.wrap(", ".join(names), WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield ""
    yield "All commands: elasticctl --help. Options of one: elasticctl COMMAND --help."


def other_word(word: str) -> str:
    """Return a hint for a command of another tool; "": the word is not one."""
    meant = OTHER_TOOLS.get(word, "")
    return f"there is no command {word!r}: elasticctl has `{meant}` for this" if meant else ""


def other_option(command: str, option: str) -> str:
    """Return a hint for an option of another tool; "": the option is not one."""
    meant = OTHER_OPTIONS.get(command, {}).get(option, "")
    return f"{command} has no option {option}: use {meant}" if meant else ""
