"""A policy in a user's Python file: valid results, and the reports of its errors."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path

import msgspec
import pytest

from elasticd.scheduler import plugin
from elasticd.scheduler.options import WrongOption
from elasticd.scheduler.samples import samples
from elasticd.scheduler.scheduler import Scheduler, document, load_scheduler

BEGINNING = "from elasticd.scheduler.plugin import PolicyPlugin\n\n\nclass Mine(PolicyPlugin):\n"
BODY = 5  # the first line behind that
ONE_EACH = (
    "    def shares(self, jobs, gpus, now, rng):\n        return [1 if row < gpus else 0 for row in range(len(jobs))]\n"
)
PAGE = (Path(__file__).parents[2] / "docs" / "research.md").read_text()


def load(directory: Path, text: str, **parameters: object) -> Scheduler:
    (directory / "mine.py").write_text(text)
    return load_scheduler({"policy": "mine.py", "parameters": parameters}, "test", python_from=str(directory))


def of(scheduler: Scheduler) -> plugin.LoadedPlugin:
    assert isinstance(scheduler.policy, plugin.LoadedPlugin)
    return scheduler.policy


def example() -> str:
    found = re.search(r"```python\n# shortest\.py\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_of_the_page_gives_the_shortest_job_all_that_it_can_use(tmp_path: Path) -> None:
    assert len(example().splitlines()) <= 25
    policy = of(load(tmp_path, example()))
    plugin.try_out(policy)
    for jobs, gpus in samples():
        given = policy.shares(jobs, gpus, 1000.0, random.Random(0)).gpus
        if len(jobs):
            first = int(jobs.left_s.argmin())
            assert given[first] == min(jobs.max_gpus[first], gpus)


def test_a_list_will_do_and_the_names_of_files_are_told(tmp_path: Path) -> None:
    policy = of(load(tmp_path, BEGINNING + ONE_EACH.replace("1 if row < gpus else 0", "0")))
    assert policy.name == "mine.py"
    assert not policy.needs_lengths
    plugin.try_out(policy)
    jobs, gpus = list(samples())[3]
    reason = policy.shares(jobs, gpus, 0.0, random.Random(0)).why(0)
    assert reason is not None
    assert "mine.py" in reason.text


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("        return [0] * (len(jobs) + 1)\n", BODY, "a whole number for each is wanted"),
        ("        return [0.5] * len(jobs)\n", BODY, "a whole number for each is wanted"),
        ("        return 'many'\n", BODY, "ValueError"),
        ("        return None\n", BODY, "for 0 jobs"),
        ("        return [99] * len(jobs)\n", BODY, "it can have none, or from"),
        ("        return [-1] * len(jobs)\n", BODY, "it can have none, or from"),
        ("        return list(jobs.max_gpus)\n", BODY, "are given, and there are"),
        ("        x = 0\n        return 1 / x\n", BODY + 2, "ZeroDivisionError: division by zero"),
        ("        import sys\n        sys.exit(3)\n", BODY + 2, "SystemExit: 3"),
        ("        return jobs.no_such_column\n", BODY + 1, "no_such_column"),
        ("        return [jobs.left_s[0]]\n", BODY + 1, "length"),
        ("        jobs.min_gpus[:] = 0\n        return 0 * jobs.min_gpus\n", BODY + 1, "read-only"),
    ],
)
def test_what_cannot_be_is_told_with_file_and_line(tmp_path: Path, body: str, line: int, words: str) -> None:
    policy = of(load(tmp_path, BEGINNING + "    def shares(self, jobs, gpus, now, rng):\n" + body))
    with pytest.raises(plugin.PolicyError) as told:
        plugin.try_out(policy)
    assert str(told.value).startswith(f"{tmp_path}/mine.py: ")
    assert words in str(told.value)
    assert told.value.line == line
    assert f"mine.py: line {line}: " in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (\n", "line 1: '(' was never closed"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError"),
        ("\n\nraise RuntimeError('no')\n", "line 3: RuntimeError: no"),
        ("x = 1\n", "there is none"),
        (BEGINNING + ONE_EACH + "\n\nclass Other(PolicyPlugin):\n" + ONE_EACH, "there are 2: Mine, Other"),
        (
            BEGINNING + "    def __init__(self, parameters):\n        raise KeyError('x')\n" + ONE_EACH,
            "line 6: KeyError",
        ),
        ("# \x00\n", "mine.py: "),
    ],
)
def test_a_file_that_is_no_policy_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(plugin.PolicyError) as told:
        load(tmp_path, text)
    assert str(told.value).startswith(f"{tmp_path}/mine.py: ")
    assert words in str(told.value)


def test_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(plugin.PolicyError, match=r"other\.py: no such file"):
        load_scheduler({"policy": "other.py"}, "test", python_from=str(tmp_path))


def test_who_may_not_name_python_files_is_refused() -> None:
    with pytest.raises(WrongOption, match=r"only the operator's controller\.yaml may name it"):
        load_scheduler({"policy": "mine.py"}, "a request")


PARAMETERS = (
    "import msgspec\nfrom elasticd.scheduler.plugin import PolicyPlugin\n\n\nclass Mine(PolicyPlugin):\n"
    "    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):\n        most_gpus: int = 4\n\n"
    "    def shares(self, jobs, gpus, now, rng):\n        return [self.parameters.most_gpus * 0] * len(jobs)\n"
)


def test_parameters_are_typed_and_wrong_ones_named(tmp_path: Path) -> None:
    scheduler = load(tmp_path, PARAMETERS, most_gpus=7)
    assert msgspec.to_builtins(scheduler.parameters) == {"most_gpus": 7}
    assert document(scheduler)["parameters"] == {"most_gpus": 7}
    plugin.try_out(of(scheduler))
    with pytest.raises(WrongOption) as told:
        load(tmp_path, PARAMETERS, most_gpus="many")
    assert "most_gpus" in told.value.field


def test_another_text_is_another_policy_and_the_same_text_is_the_same(tmp_path: Path) -> None:
    first = document(load(tmp_path, BEGINNING + ONE_EACH))
    assert document(load(tmp_path, BEGINNING + ONE_EACH)) == first
    assert document(load(tmp_path, BEGINNING + ONE_EACH + "# other\n")) != first


def test_another_process_reads_the_file_for_itself(tmp_path: Path) -> None:
    policy = of(load(tmp_path, PARAMETERS, most_gpus=3))
    again = pickle.loads(pickle.dumps(policy))
    assert (again.name, msgspec.to_builtins(again.parameters)) == ("mine.py", {"most_gpus": 3})


def test_a_policy_with_the_imports_of_version_0_1_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text(
        "from elasticd.scheduler.own import OwnPolicy, Shares\n\n\nclass Mine(OwnPolicy):\n"
        "    def shares(self, jobs, gpus, now, rng):\n        return 0 * jobs.min_gpus\n"
    )
    plugin.try_out(plugin.load(str(path), {}, str(path)))
