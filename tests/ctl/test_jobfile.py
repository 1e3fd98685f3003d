"""Throughput in job files."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elasticd.ctl.jobdocument import memory_text, text_of
from elasticd.ctl.jobfile import Overrides, build
from elasticd.ctl.jobgpus import GpuOptions, wanted_gpus
from elasticd.ctl.render import length, point_line
from elasticd.protocol.errors import UserError
from elasticd.protocol.limits import COMPARE_EVERY
from elasticd.protocol.messages import CurvePoint, JobLength, LengthSource
from elasticd.protocol.model import Deadline, JobId, JobPhase, JobSpec, OnDivergence, ResumeFrom, Sharding, Until

ENVIRON = {"PATH": "/usr/bin:/bin"}


def built(directory: Path, text: str) -> JobSpec:
    file = directory / "job.yaml"
    file.write_text(f"command: sleep 1\n{text}\n")
    return build(file, Overrides(), directory, ENVIRON)


def test_model_and_throughput_are_taken_over(tmp_path: Path) -> None:
    spec = built(tmp_path, "model: ResNet-50/256\nthroughput: {1: 10, 2: 19.1}")
    assert (spec.model, spec.throughput) == ("ResNet-50/256", {1: 10.0, 2: 19.1})
    assert (built(tmp_path, "").model, built(tmp_path, "").throughput) == ("", {})


def test_a_job_with_an_image_takes_nothing_of_this_machines_programs_along(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: no-such-program --fast\nimage: localhost/x:1\nenv: {A: b}\n")
    spec = build(tmp_path / "job.yaml", Overrides(), tmp_path, ENVIRON)
    assert (spec.image, spec.env, spec.start_timeout_s) == ("localhost/x:1", {"A": "b"}, 3600.0)
    (tmp_path / "again.yaml").write_text(text_of(spec))
    assert build(tmp_path / "again.yaml", Overrides(), tmp_path, ENVIRON) == spec
    for image in ("-v", "a b", "docker-archive:/x"):
        with pytest.raises(UserError, match=r"--image: .* is not the name of an image"):
            build(tmp_path / "job.yaml", Overrides(image=image), tmp_path, ENVIRON)
    (tmp_path / "job.yaml").write_text("command: python absent.py\nimage: localhost/x:1\n")
    with pytest.raises(UserError, match=r"there is no file absent\.py"):
        build(tmp_path / "job.yaml", Overrides(), tmp_path, ENVIRON)
    (tmp_path / "a,b").mkdir()
    with pytest.raises(UserError, match="cannot be mounted in a container"):
        build(None, Overrides(image="x", command=("true",)), tmp_path / "a,b", ENVIRON)


def test_limits_for_starting_and_saving_are_durations(tmp_path: Path) -> None:
    spec = built(tmp_path, "start_timeout: 2m\nload_timeout: 1h30m\ncheckpoint: {save_timeout: 90}")
    assert (spec.start_timeout_s, spec.load_timeout_s, spec.checkpoint.save_timeout_s) == (120.0, 5400.0, 90.0)
    spec = built(tmp_path, "")
    assert (spec.start_timeout_s, spec.load_timeout_s, spec.checkpoint.save_timeout_s) == (600.0, 3600.0, None)


def test_limits_for_steps_and_pauses_are_durations(tmp_path: Path) -> None:
    spec = built(tmp_path, "step_timeout: 90\npause_timeout: 3h")
    assert (spec.step_timeout_s, spec.pause_timeout_s) == (90.0, 10800.0)
    spec = built(tmp_path, "")
    assert (spec.step_timeout_s, spec.pause_timeout_s) == (None, 3600.0)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("step_timeout: soon", "step_timeout"),
        ("pause_timeout: 0", "pause_timeout"),
        ("start_timeout: soon", "start_timeout"),
        ("load_timeout: 0", "load_timeout"),
        ("checkpoint: {save_timeout: -1s}", "checkpoint.save_timeout"),
        ("compare_every: 0", "compare_every"),
        ("compare_every: 10000000", "compare_every"),
        ("on_divergence: ignore", "on_divergence"),
        ("sharding: everything", "sharding"),
    ],
)
def test_a_wrong_limit_is_refused_with_file_and_field(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(UserError, match=f"job.yaml: {field}: "):
        built(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deadline: 2h", Deadline(in_s=7200.0)),
        ("deadline: 90", Deadline(in_s=90.0)),
        ("deadline: 1h30m\nsoft: true", Deadline(in_s=5400.0, soft=True)),
        ("deadline: 2027-01-31T18:00:00+01:00", Deadline(at_s=1801414800.0)),
        ("deadline: '2027-01-31 18:00+01:00'", Deadline(at_s=1801414800.0)),
        ("soft: false", None),
        ("", None),
    ],
)
def test_a_deadline_is_a_duration_or_a_date(tmp_path: Path, text: str, expected: Deadline | None) -> None:
    assert built(tmp_path, text).deadline == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy >= 0.95", Until(metric="accuracy", bound=0.95)),
        ("eval/loss<=1e-1", Until(metric="eval/loss", bound=0.1, at_least=False)),
        ("score >= -3", Until(metric="score", bound=-3.0)),
    ],
)
def test_a_job_trains_until_a_figure_is_reached(tmp_path: Path, text: str, expected: Until) -> None:
    assert built(tmp_path, f"until: '{text}'").until == expected


def test_the_option_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: 'true'\nuntil: accuracy >= 0.5\n")
    spec = build(tmp_path / "job.yaml", Overrides(until="loss <= 0.1"), tmp_path, {})
    assert str(spec.until) == "loss <= 0.1"


def test_status_shows_what_reports_suggest() -> None:
    known = JobLength(source=LengthSource.UNKNOWN, steps=6300.0, by_reports="accuracy >= 0.95")
    running = SimpleNamespace(step=99, phase=JobPhase.RUNNING)
    assert length(running, known) == "about 6,300 steps, until accuracy >= 0.95, by what it reports"  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["accuracy", "accuracy > 0.9", ">= 0.9", "accuracy >= much", "accuracy >= 1e999"])
def test_a_figure_that_is_none_is_refused_with_file_and_field(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"until: .* is not such as 'accuracy >= 0\.95'"):
        built(tmp_path, f"until: '{text}'")


def test_a_date_without_a_zone_is_in_that_of_whoever_submits(tmp_path: Path) -> None:
    wanted = Deadline(at_s=datetime.datetime(2027, 1, 31, 18).timestamp())
    assert built(tmp_path, "deadline: 2027-01-31 18:00").deadline == wanted
    assert built(tmp_path, "deadline: 2027-01-31 18:00:00").deadline == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deadline: soon", "deadline: 'soon' is not a duration"),
        ("deadline: 0", "deadline: 0 is not a positive duration"),
        ("deadline: 2027-01-31", "deadline: say the time, too, such as 2027-01-31 18:00"),
        ("deadline: 2027-13-31 18:00", "deadline: '2027-13-31 18:00' is not a date"),
        ("deadline: [1, 2]", "deadline: must be a duration such as 2h, or a date"),
        ("deadline: true", "deadline: must be a duration such as 2h, or a date"),
        ("soft: true", "soft: there is no deadline that could be soft"),
    ],
)
def test_a_wrong_deadline_is_refused_with_file_and_field(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=f"job.yaml: {words}"):
        built(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("comand: python a.py", "unknown field 'comand' (did you mean command?); known are"),
        ("resources: {}", "unknown field 'resources', of another tool; here it is gpus; known are"),
    ],
)
def test_a_slip_or_another_tools_field_is_refused_with_the_field_that_is_meant(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        built(tmp_path, text)


def test_how_workers_are_compared_is_read(tmp_path: Path) -> None:
    assert built(tmp_path, "sharding: optimizer").sharding is Sharding.OPTIMIZER
    spec = built(tmp_path, "compare_every: 1\non_divergence: fail")
    assert (spec.compare_every, spec.on_divergence) == (1, OnDivergence.FAIL)
    spec = built(tmp_path, "")
    assert (spec.compare_every, spec.on_divergence) == (COMPARE_EVERY, OnDivergence.REPLACE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: ' '", ["model", "1 to 200"]),
        ("throughput: 10", ["throughput", "10", "steps per second"]),
        ("throughput: {}", ["throughput", "steps per second"]),
        ("throughput: {zero: 10}", ["throughput", "'zero'", "1 to 4096"]),
        ("throughput: {0: 10}", ["throughput", "0", "1 to 4096"]),
        ("throughput: {1: fast}", ["throughput.1", "'fast'", "1e-06 to 1e+09"]),
        ("throughput: {1: -1}", ["throughput.1", "-1", "1e-06 to 1e+09"]),
        ("throughput: {1: .nan}", ["throughput.1", "nan", "1e-06 to 1e+09"]),
        ("throughput: {1: 10000000000}", ["throughput.1", "10000000000", "1e-06 to 1e+09"]),
    ],
)
def test_a_wrong_throughput_is_refused_with_file_and_field(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        built(tmp_path, text)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / 'job.yaml'}: ")
    assert all(word in message for word in words), message


def test_a_point_of_the_curve_says_how_it_is_known() -> None:
    measured = CurvePoint(
        share_gpus=4, servers=2, steps_per_s=12.345, samples_per_s=395.0, source="measured", times=3, age_s=65.0
    )
    assert point_line(measured).split() == (
        [
            "4",
            "GPUs",
            "on",
            "2",
            "servers",
            "12.35",
            "steps/s",
            "395.0",
            "samples/s",
            "measured,",
            "3",
            "times,",
            "1m05s",
            "ago",
        ]
    )
    stated = CurvePoint(share_gpus=1, servers=None, steps_per_s=10.0, samples_per_s=None, source="stated")
    assert point_line(stated).split() == ["1", "GPU", "10.00", "steps/s", "stated"]


def test_a_working_directory_counts_from_the_directory_of_its_file(tmp_path: Path) -> None:
    jobs, elsewhere = tmp_path / "jobs", tmp_path / "elsewhere"
    (jobs / "data").mkdir(parents=True)
    elsewhere.mkdir()
    (jobs / "here.yaml").write_text("command: sleep 1\nworkdir: .\n")
    (jobs / "below.yaml").write_text("command: sleep 1\nworkdir: data\n")
    (jobs / "none.yaml").write_text("command: sleep 1\n")
    found = {
        name: build(jobs / f"{name}.yaml", Overrides(), elsewhere, ENVIRON).workdir
        for name in ("here", "below", "none")
    }
    assert found == {"here": str(jobs), "below": str(jobs / "data"), "none": str(elsewhere)}
    (jobs / "wrong.yaml").write_text("command: sleep 1\nworkdir: elsewhere\n")
    with pytest.raises(UserError, match="jobs/elsewhere is not a directory"):
        build(jobs / "wrong.yaml", Overrides(), tmp_path, ENVIRON)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"command: ./{'x' * 5000}", "there is no program './x"),
        (f"command: python3 ./{'x' * 5000}.py", "there is no file"),
        (f"command: sleep 1\nworkdir: {'x' * 5000}", "is not a directory"),
    ],
)
def test_a_name_that_is_too_long_for_a_file_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        build(file, Overrides(), tmp_path, ENVIRON)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("checkpoint: 5", "checkpoint: must be fields, not a whole number"),
        ("name: [a]", "name: must be text, not a list"),
        ("restarts: many", "restarts: must be a whole number, not text"),
        ("env: 5", "env: must be fields, not a whole number"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_plain_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        built(tmp_path, text)
    assert str(raised.value).endswith(f"job.yaml: {words}")


def test_a_command_that_is_no_text_is_refused_in_plain_words(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: 5\n")
    with pytest.raises(UserError, match=r"command: must be text or a list, not a whole number"):
        build(file, Overrides(), tmp_path, ENVIRON)


@pytest.mark.parametrize(
    "written",
    ["12.10", "010", "12:30", "0x10", "1_000", "yes", "Off", "null", "~", "2027-01-31", "1e3", ".5", "+7", "y", "<<"],
)
def test_a_variable_arrives_as_it_is_written(tmp_path: Path, written: str) -> None:
    env = built(tmp_path, f"env: {{RUN: {written}, LAST: '{written}'}}").env
    assert (env["RUN"], env["LAST"]) == (written, written)


def test_names_of_variables_and_words_of_a_list_arrive_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [sleep, 010, 1_0]\nenv: {ON: 1, NO: 2, Y: 3}\n")
    spec = build(tmp_path / "job.yaml", Overrides(), tmp_path, {})
    assert (spec.command, spec.env) == (("sleep", "010", "1_0"), {"ON": "1", "NO": "2", "Y": "3"})


def test_a_variable_that_shares_an_anchor_is_text_and_the_other_field_a_number(tmp_path: Path) -> None:
    spec = built(tmp_path, "max_steps: &steps 010\nenv: {STEPS: *steps}")
    assert (spec.max_steps, spec.env["STEPS"]) == (8, "010")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env: {A: 1}\nenv: {B: 2}", "line 3: env is given twice: keep one of them"),
        ("env:\n  A: 1\n  B: 2\n  A: 3", "line 5: env.A is given twice: keep one of them"),
        ("gpus: {min: 1, max: 2, min: 2}", "line 2: gpus.min is given twice: keep one of them"),
        ("env:\n  A:\n  B: 2", "line 3: env.A: has no value; write '' for an empty one"),
        ("env: {A: [1]}", "env.A: ['1'] is no text; put it in quotes".replace("'1'", "1")),
    ],
)
def test_repeated_keys_and_values_that_are_no_text_are_refused_with_their_line(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UserError) as refused:
        built(tmp_path, text)
    assert str(refused.value) == f"{tmp_path / 'job.yaml'}: {words}"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "sleep 1 && sleep 2",
            '&& is for a shell, and none runs the command: write command: [bash, -c, "sleep 1 && sleep 2"]',
        ),
        ("cat a | sort", '| is for a shell, and none runs the command: write command: [bash, -c, "cat a | sort"]'),
        (
            "sleep 1 > log",
            "> is for a shell, and none runs the command: leave it out (`elasticctl logs` shows the output), or",
        ),
        ("sleep 1 2>&1", "2>&1 is for a shell"),
        ("sleep 1 >log", ">log is for a shell"),
        ("cd data; sleep 1", "; is for a shell"),
        ("sleep 1 &", "& is for a shell"),
        ("sleep $TIME", "$TIME is for a shell, and none runs the command: write its value, or command: [bash, -c, "),
        ("sleep --n=`date`", "`date` is for a shell"),
        (
            "python ~/train.py",
            "~/train.py is for a shell, and none runs the command: write its value, or command: [bash, -c, ",
        ),
        ("sleep 1\nsleep 2", "has several lines, which are for a shell"),
        (["sleep", "1", "&&", "sleep", "2"], "&& is for a shell"),
        (
            ["cat", "a b", "|", "sort"],
            """| is for a shell, and none runs the command: write command: [bash, -c, "cat 'a b' | sort"]""",
        ),
    ],
)
def test_a_word_for_a_shell_is_refused_with_what_to_write(tmp_path: Path, command: object, words: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"command": command}))
    with pytest.raises(UserError) as refused:
        build(tmp_path / "job.yaml", Overrides(), tmp_path, ENVIRON)
    assert f"job.yaml: command: {words}" in str(refused.value)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sleep '&&' \"a | b\" \\> 'x > $Y'", ("sleep", "&&", "a | b", ">", "x > $Y")),
        ("sleep loss>=0.5 a&b x|y", ("sleep", "loss>=0.5", "a&b", "x|y")),
        ("sleep \\\n  --for 1\n  --more 2", ("sleep", "--for", "1", "--more", "2")),
        ('sh -c "sleep $N > /dev/null && true"', ("sh", "-c", "sleep $N > /dev/null && true")),
        (["sh", "-c", "sleep 1 && sleep 2"], ("sh", "-c", "sleep 1 && sleep 2")),
        (["cut", "-d", "|", "a"], ("cut", "-d", "|", "a")),
        (["expr", "1", "|", "2"], ("expr", "1", "|", "2")),
        (["env", "find", ".", "-exec", "cat", "{}", ";"], ("env", "find", ".", "-exec", "cat", "{}", ";")),
    ],
)
def test_what_is_quoted_or_a_programs_own_is_no_word_for_a_shell(
    tmp_path: Path, command: object, expected: tuple[str, ...]
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"command": command}))
    assert build(tmp_path / "job.yaml", Overrides(), tmp_path, ENVIRON).command == expected


def test_a_shells_word_after_the_options_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the command line: command: && is .* write -- bash -c 'sleep 1 && sleep 2'"):
        build(None, Overrides(command=("sleep", "1", "&&", "sleep", "2")), tmp_path, ENVIRON)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", Overrides()),
        ("gpus: {min: 2, max: 8, type: [A100, V100], memory: 39.5GiB}\nvirtual_workers: 16", Overrides()),
        ("gpus: 8\nprocesses: per-server\nrestarts: 3", Overrides(gpus=GpuOptions(per_server=4))),
        ("deadline: 2h\nsoft: true\nmax_steps: 7\npriority: high", Overrides(until="loss <= 0.1234567")),
        ("deadline: 2027-01-31T18:00:00+01:00\npriority: 7\nmodel: ResNet-50/256", Overrides()),
        ("throughput: {1: 10, 2: 19.1}\ncheckpoint: {every: 1h30m, keep: 3, save_timeout: 0.5}", Overrides()),
        ("start_timeout: 2m\nload_timeout: 3d\nstep_timeout: 90\npause_timeout: 1.5", Overrides()),
        ("compare_every: 1\non_divergence: fail\nsharding: optimizer\ndeterminism: none\nname: x", Overrides()),
        ("env: {A: 010, B: '', C: '12:30', D: \"a\\tb\\u00e9\", E: 'null', F: ' x ', G: '~'}", Overrides()),
        ("", Overrides(command=("sleep", "010", "", "a b", "{x: 1}", "- y", "é\n"))),
        ("resume: digits-3", Overrides()),
        ("resume: ./digits-3.ab12\nwith_new_code: true", Overrides()),
    ],
)
def test_the_file_that_a_dry_run_prints_submits_the_same_job(tmp_path: Path, text: str, options: Overrides) -> None:
    (tmp_path / "job.yaml").write_text(f"command: sleep 1\n{text}\n")
    (tmp_path / "digits-3.ab12").mkdir()
    (tmp_path / "digits-3.ab12" / "generation-00000002-step-000000000041.pt").touch()
    environ = {**ENVIRON, "HOME": "/home/me", "USER": "me"}
    spec = build(tmp_path / "job.yaml", options, tmp_path, environ)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "again.yaml").write_text(text_of(spec))
    again = build(tmp_path / "elsewhere" / "again.yaml", Overrides(), tmp_path / "elsewhere", {"USER": "me"})
    assert again == spec


def test_a_file_says_which_checkpoint_the_job_goes_on_from(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: sleep 1\nresume: digits-3\nwith_new_code: true\n")
    (tmp_path / "digits-3").mkdir()
    assert build(file, Overrides(), tmp_path, ENVIRON).resume == ResumeFrom(job=JobId("digits-3"), any_code=True)
    file.write_text("command: sleep 1\nresume: ./digits-3\n")
    with pytest.raises(UserError, match=r"job\.yaml: resume: \./digits-3: holds no checkpoint"):
        build(file, Overrides(), tmp_path, ENVIRON)
    file.write_text("command: sleep 1\nwith_new_code: true\n")
    with pytest.raises(UserError, match=r"job\.yaml: with_new_code: .*resume"):
        build(file, Overrides(), tmp_path, ENVIRON)


@given(
    st.integers(1, 999_999), st.sampled_from(["", ".5", ".125", ".001"]), st.sampled_from(["KB", "MiB", "GB", "GiB"])
)
def test_any_amount_of_memory_is_printed_as_it_is_read(whole: int, part: str, unit: str) -> None:
    read = wanted_gpus("gpus", {"memory": f"{whole}{part}{unit}"}, GpuOptions()).memory_bytes
    assert wanted_gpus("gpus", {"memory": memory_text(read)}, GpuOptions()).memory_bytes == read
