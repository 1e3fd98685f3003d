"""Arrays and sweeps: what is read, which jobs they become, and how they are shown as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticd.ctl import arrays, jobdocument
from elasticd.ctl.jobfile import Overrides, array_of, build
from elasticd.protocol.errors import UserError
from elasticd.protocol.model import JobSpec


def spec(*command: str, **options: Any) -> JobSpec:
    return build(None, Overrides(command=command, name="sweep", **options), Path("/tmp"), {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(
    ("text", "indices", "most"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("0-99%8", tuple(range(100)), 8),
        ("1,3,7", (1, 3, 7), None),
        ("0-20:5", (0, 5, 10, 15, 20), None),
        ("5,1-3,2", (1, 2, 3, 5), None),
        ("7", (7,), None),
    ],
)
def test_indices_are_read_as_slurm_writes_them(text: str, indices: tuple[int, ...], most: int | None) -> None:
    array = arrays.wanted("--array", text, "--sweep", None)
    assert array is not None
    assert (array.indices, array.most) == (indices, most)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not such as 0-99"),
        ("a-b", "not such as 0-99"),
        ("3-1", "'3-1' has no index"),
        ("0-9%0", "at least 1"),
        ("0-9%x", "at least 1"),
        ("0-1000", "at most 1000 jobs"),
        ("-1", "not such as"),
        ("0-4:0", "has no index"),
    ],
)
def test_a_wrong_array_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        arrays.wanted("--array", text, "--sweep", None)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("--array: ")


def test_each_job_of_an_array_has_its_index_in_command_variables_and_name() -> None:
    array = arrays.wanted("--array", "0,12%1", "", None)
    assert array is not None
    first, second = array.elements(
        spec("echo", "{index}", "out/{index}.txt", "${index}", "{other}", env=("N=n{index}",))
    )
    assert second.command == ("echo", "12", "out/12.txt", "${index}", "{other}")
    assert (first.name, second.name) == ("sweep-0", "sweep-12")
    assert (second.env["N"], second.env[arrays.INDEX]) == ("n12", "12")
    assert first.array is not None
    assert second.array is not None
    assert first.array.array == second.array.array
    assert (second.array.name, second.array.size, second.array.most) == ("sweep", 2, 1)
    long = next(array.elements(spec("true").__class__(**{**_fields(spec("true")), "name": "n" * 40})))
    assert (len(long.name), long.name[-2:]) == (40, "-0")


def _fields(job: JobSpec) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def test_a_sweep_is_the_product_of_its_lists(tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("lr: [0.1, 1e-3]\nseed: [1, 2, 3]\nmodel: small\n")
    array = array_of(None, Overrides(command=("true",), sweep=grid, array="%4"), tmp_path)
    assert array is not None
    assert (array.text, array.most, len(array.indices)) == ("0-5%4", 4, 6)
    commands = [job.command[1] for job in array.elements(spec("echo", "{index} {lr} {seed} {model}"))]
    assert commands[:4] == ["0 0.1 1 small", "1 0.1 2 small", "2 0.1 3 small", "3 1e-3 1 small"]
    some = array_of(None, Overrides(command=("true",), sweep=grid, array="4-5"), tmp_path)
    assert some is not None
    assert [job.command[1] for job in some.elements(spec("echo", "{lr} {seed}"))] == ["1e-3 2", "1e-3 3"]
    with pytest.raises(UserError, match="indices 0 to 5, and no 6"):
        array_of(None, Overrides(command=("true",), sweep=grid, array="4-6"), tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "must have lists"),
        ("lr: []", "must be a list of numbers or words"),
        ("lr: [[1]]", "must be a list"),
        ("index: [1]", "is not a name"),
        ("a: [1,2,3,4,5,6,7,8,9,10,11]\nb: [1,2,3,4,5,6,7,8,9,10]\nc: [1,2,3,4,5,6,7,8,9,10]", "1100 combinations"),
    ],
)
def test_a_wrong_sweep_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        array_of(None, Overrides(command=("true",), sweep=Path("grid.yaml")), tmp_path)


def test_values_of_a_sweep_arrive_as_they_are_written(tmp_path: Path) -> None:
    lists = "[010, yes, 1_000, 0x10, 12:30, 0.10, 'a b', 2026-01-01]"
    written = ("010", "yes", "1_000", "0x10", "12:30", "0.10", "a b", "2026-01-01")
    (tmp_path / "grid.yaml").write_text(f"x: {lists}\n")
    (tmp_path / "job.yaml").write_text(f"command: echo\nsweep: {{x: {lists}}}\n")
    for file, options in ((None, Overrides(sweep=Path("grid.yaml"))), (tmp_path / "job.yaml", Overrides())):
        array = array_of(file, options, tmp_path)
        assert array is not None
        assert tuple(each["x"] for each in array.values) == written


def test_a_list_that_stands_twice_and_a_second_document_are_refused(tmp_path: Path) -> None:
    for text, words in (
        ("x: [1]\ny: [2]\nx: [3]\n", r"grid\.yaml: line 3: x is given twice"),
        ("x: [1]\n---\nx: [2]\n", "line 2, column 1: holds another document behind ---"),
    ):
        (tmp_path / "grid.yaml").write_text(text)
        with pytest.raises(UserError, match=words):
            array_of(None, Overrides(command=("true",), sweep=Path("grid.yaml")), tmp_path)


def test_a_name_in_braces_that_a_sweep_does_not_have_is_told(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("lr: [0.1]\nseed: [1]\n")
    array = array_of(None, Overrides(command=("true",), sweep=Path("grid.yaml")), tmp_path)
    assert array is not None
    assert arrays.unused(spec("echo", "{lr} {sed}"), array) == "{sed} stays as it is: the sweep has index, lr, seed"
    for command in ("{lr} {seed}", "{lr} ${HOME}", "{lr} {0}"):
        assert not arrays.unused(spec("echo", command), array)


def test_a_dry_run_of_an_array_is_a_job_file_of_the_same_array(tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("lr: [0.1, 0.01]\n")
    for options in (Overrides(array="0-9%3"), Overrides(sweep=grid, array="%1"), Overrides(sweep=grid)):
        array = array_of(None, options, tmp_path)
        assert array is not None
        file = tmp_path / "shown.yaml"
        file.write_text(jobdocument.text_of(spec("true"), array.document()))
        again = array_of(file, Overrides(), tmp_path)
        assert again == array


def test_jobs_that_would_all_do_the_same_are_told() -> None:
    array = arrays.wanted("--array", "0-3", "", None)
    assert array is not None
    assert "{index}" in arrays.unused(spec("true"), array)
    assert not arrays.unused(spec("echo", "{index}"), array)
    assert not arrays.unused(spec("bash", "-c", f"echo ${arrays.INDEX}"), array)
