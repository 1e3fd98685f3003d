"""`elasticctl` without a cluster: real processes whose usage is refused or explained, and their start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from elasticd.ctl import main, overview

from .command import ELASTICCTL, PATIENCE_S, Cli, completed, one_line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: sleep 1\ngpu: 2\n", ["gpu"]),
        ("command: sleep 1\ngpus: {min: 4, max: 2}\n", ["gpus", "4", "2"]),
        ("command: sleep 1\ngpus: 0\n", ["gpus", "0", "at least 1"]),
        ("command: sleep 1\ngpus: many\n", ["gpus", "many"]),
        ("command: sleep 1\ngpus: {max: 4}\nvirtual_workers: 2\n", ["virtual_workers", "2", "4"]),
        ("command: sleep 1\nvirtual_workers: two\n", ["virtual_workers", "a whole number"]),
        ("gpus: 1\n", ["command", "missing"]),
        ("command: no-such-program-anywhere\n", ["command", "no-such-program-anywhere"]),
        ("command: python nothing.py\n", ["command", "nothing.py"]),
        ("command: sleep 1\nname: Not A Name\n", ["name", "Not A Name"]),
        ("command: sleep 1\ncheckpoint: {every: soon}\n", ["checkpoint.every", "soon"]),
        ("command: sleep 1\nscaling: strong\n", ["scaling", "hybrid, manual"]),
        ("command: sleep 1\nworkdir: /no/where\n", ["workdir", "/no/where"]),
        ("command: sleep 1\nenv: {ELASTICD_JOB: x}\n", ["ELASTICD_JOB"]),
        ("command: [sleep\n", ["line"]),
        ("- sleep\n", ["fields", "list"]),
    ],
)
def test_a_wrong_job_file_is_refused_in_one_sentence_that_names_file_and_field(
    offline: Cli, text: str, words: list[str]
) -> None:
    (offline.cwd / "wrong.yaml").write_text(text)
    line = one_line(offline("submit", "wrong.yaml", code=2))
    for word in ["wrong.yaml", *words]:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("submit", "missing.yaml"), "missing.yaml: no such file"),
        (("submit",), "give a job file"),
        (("submit", "--gpus", "3:1", "--", "sleep", "1"), "less than the minimum"),
        (("submit", "--env", "X", "--", "sleep", "1"), "NAME=VALUE"),
        (("submit", "--no-such-option", "sleep.yaml"), "--no-such-option"),
        (("scale", "sleep", "zero"), "zero"),
        (("status", "-w", "--json"), "exclude each other"),
        (("policy", "set"), "give a policy file"),
        (("policy", "set", "best"), "there is no policy 'best'; known are"),
        (("policy", "set", "none.yaml"), "none.yaml: no such file"),
        (("policy", "set", "fifo", "--from-config"), "--from-config"),
        (("frobnicate",), "frobnicate"),
        (("squeue", "-u", "me"), "there is no command 'squeue': elasticctl has `status` for this"),
        (("list", "events"), "there is no command 'list': elasticctl has `status` for this"),
        (("statsu",), "Did you mean 'status'?"),
        (("launch", "job.yaml"), "there is no command 'launch': elasticctl has `run` or `submit` for this"),
        (("sattach", "3"), "there is no command 'sattach': elasticctl has `attach` for this"),
        (("job", "submit"), "elasticctl has `submit`, `status`, `logs` or `cancel` for this"),
        (("scontrol", "hold", "3"), "elasticctl has `status JOB`, `hold`, `release`, `pause`, `requeue` or `drain`"),
        (("submit", "--gres", "gpu:2", "--", "true"), "submit has no option --gres: use --gpus"),
        (("submit", "-n", "2", "--", "true"), "submit has no option -n: use --gpus"),
        (("submit", "--time-limit=2h", "--", "true"), "submit has no option --time-limit: use --time"),
        (("run", "-t", "2h", "--", "true"), "run has no option -t: use --time 2h"),
        (("submit", "--dependency=afterok:3", "--", "true"), "submit has no option --dependency: use --after JOB"),
        (
            ("submit", "--gpus", "A100:2", "--", "true"),
            "'A100:2' is not a number, or a range such as 1:8; the type of GPU",
        ),
        (("scale", "digits", "--replicas", "2"), "scale has no option --replicas: use the number alone, `scale JOB 2`"),
        (("scale", "digits", "--replicas=2"), "scale has no option --replicas: use the number alone, `scale JOB 2`"),
        (("exec", "-it", "digits", "--", "bash"), "the shell has a terminal if you have one"),
        (("cancel", "-u", "me"), "cancel has no option -u: use --all"),
        (("submit", "--deadline", "18:00", "--", "true"), "90s, 10m or 1h30m, nor a date such as '2027-01-31 18:00'"),
        (
            ("submit", "train.py"),
            "is neither a job file (.yaml) nor a batch script (#!); put a command after --, such as -- python",
        ),
    ],
)
def test_wrong_usage_is_refused_in_one_sentence(offline: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in one_line(offline(*arguments, code=2))


def test_the_command_starts_without_anything_heavy() -> None:
    program = "import sys, elasticd.ctl.main; print(*{'torch', 'numpy', 'zmq', 'rich', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--since", "last week"), "neither days"),
        (("--json", "--csv"), "exclude each other"),
        (("--job", "a-1", "--by", "day"), "stands alone"),
    ],
)
def test_a_report_that_nobody_can_mean_is_refused(offline: Cli, arguments: tuple[str, ...], reason: str) -> None:
    assert reason in one_line(offline("report", *arguments, code=2))


def test_without_a_cluster_a_shell_is_offered_nothing_and_told_nothing(offline: Cli) -> None:
    assert completed(offline, "elasticctl scale x") == []
    assert completed(offline, "elasticctl --controller tcp://127.0.0.1:9 scale x") == []
    assert completed(offline, f"elasticctl --controller ipc://{offline.cwd}/nobody servers remove x") == []
    assert {"afs-l", "afs-p"} <= {*completed(offline, "elasticctl policy set afs-")}
    assert completed(offline, "elasticctl submit --priority h") == ["high"]


def test_every_command_is_known_to_the_table_that_says_which_file_to_load() -> None:
    app = main.application([])
    commands = [each.name or each.callback.__name__ for each in app.registered_commands if each.callback]
    groups = [each.name or each.typer_instance.info.name for each in app.registered_groups if each.typer_instance]
    assert {*commands, *groups} == {command for commands in main.ROOMS.values() for command in commands}


def test_the_one_screen_has_every_command_and_no_word_of_another_tool_is_one_of_ours() -> None:
    commands = [command for commands in main.ROOMS.values() for command in commands]
    text = overview.screen(commands)
    assert len(text.splitlines()) < 24
    assert max(map(len, text.splitlines())) <= 80
    assert set(commands) <= set(re.findall(r"[a-z]+", text))
    assert not set(overview.OTHER_TOOLS) & set(commands)
    named = [each for text in overview.OTHER_TOOLS.values() for each in re.findall("`(.*?)`", f"`{text}`")]
    assert {each.split()[0] for each in named} <= {*commands, "--help"}
    full = overview.screen([*commands, *(name for group in overview.GROUPS for name in group.names)])
    assert len(full.splitlines()) < 24, "with all that it has a place for"


@pytest.mark.parametrize("command", overview.OTHER_OPTIONS)
def test_options_of_other_tools_are_none_of_ours_and_those_that_are_named_instead_are(
    offline: Cli, command: str
) -> None:
    own = set(re.findall(r"(?<![\w-])--?[a-z-]+", offline(command, "--help").stdout))
    others = overview.OTHER_OPTIONS[command]
    assert not set(others) & own
    assert {each for text in others.values() for each in re.findall(r"(?<![\w-])--[a-z-]+", text)} <= own


def test_help_version_and_a_bare_command_answer_without_a_cluster(offline: Cli) -> None:
    bare, asked = offline().stdout, offline("--help").stdout
    assert len(bare.splitlines()) < 24
    for command in ("submit", "status", "servers", "policy", "simulate"):
        assert f"\n  {command} " in asked
        assert command in bare
    assert offline("--version").stdout.startswith("elasticctl 0.")
    assert offline("policy").stdout.startswith("Usage: elasticctl policy ")
    for command in ("", "policy"):
        done = subprocess.run(f"{ELASTICCTL} {command} | true", shell=True, capture_output=True, text=True)
        assert done.stderr == "", "a reader that goes away is no fault"


@pytest.mark.parametrize(
    ("controller", "code", "said"),
    [("tcp://192.0.2.1:7700", 0, "the job fails unless it does on the servers"), (None, 2, "or name its interpreter")],
)
def test_what_the_interpreter_here_lacks_is_a_warning_where_the_servers_are_elsewhere(
    offline: Cli, tmp_path: Path, controller: str | None, code: int, said: str
) -> None:
    if controller is None:
        offline.directory.mkdir(exist_ok=True)
        (offline.directory / "cluster.json").write_text('{"controller": "ipc:///nowhere"}')
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    (offline.cwd / "needs.py").write_text("import torch\n")
    where = () if controller is None else ("--controller", controller)
    done = offline(*where, "submit", "--dry-run", "--", str(bare), "needs.py", code=code)
    assert said in done.stderr
    told = ["is not known: the controller at tcp://192.0.2.1:7700 wants a key"] if code == 0 else []
    assert [said, *told] == [words for words in (said, *told) if words in done.stderr]
    assert done.stderr.count("\n") == 1 + len(told)
    assert bool(done.stdout) is (code == 0)
    if controller is None:
        (offline.directory / "cluster.json").unlink()
        assert "no cluster at" in one_line(offline("submit", "--", str(bare), "needs.py", code=3))


def test_a_submission_from_a_directory_that_is_gone_says_so(offline: Cli, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = ["bash", "-c", f'rmdir "$PWD"; exec {ELASTICCTL} --dir {offline.directory} submit --dry-run -- true']
    done = subprocess.run(words, cwd=gone, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, "does not exist any more" in one_line(done)) == (2, True)


@pytest.mark.parametrize("words", ["status a b", "history a", "logs a b", "explain a b"])
def test_one_word_too_many_is_answered_with_what_to_type(offline: Cli, words: str) -> None:
    line = one_line(offline(*words.split(), code=2))
    assert line == f"elasticctl: {overview.ONE_WORD_MORE[words.split()[0]]}"
