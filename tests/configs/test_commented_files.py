"""The commented configuration files are correct: every option, its default, and its unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from elasticd.agent.config import AgentConfig
from elasticd.controller.config import RELOADED, ControllerConfig

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = {"controller.yaml": ControllerConfig, "agent.yaml": AgentConfig}
UNIT_IN_NAME = re.compile(r"_(s|gib|mib|bytes|per_s)$")
# The unit of a number without one in its name: a word of the comment above it.
COUNTED = {
    "max_restarts": "often",
    "user_priority": "greatest",
    "operator_priority": "greatest",
    "steps": "steps",
    "most_of_rest": "part",
    "jobs": "jobs",
    "days": "days",
    "usage_days": "days",
    "metrics_jobs": "jobs",
    "open_jobs_per_user": "jobs",
    "cpu_slots": "slots",
    "visible_gpus": "indexes",
    "connections": "connections",
    "messages_at_once": "at once",
    "at_once": "at once",
    "tasks": "threads",
    "cpus": "processors",
    "worker_log_mib": "MiB",
    "least_free_share": "part",
    "xid_actions": "XID",
}


def options(struct: type[msgspec.Struct], at: str = "") -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """All options, also those of sections, with their dotted names."""
    for field in msgspec.structs.fields(struct):
        yield f"{at}{field.name}", field
        parts = get_args(field.type)
        section = parts[0] if parts[1:] == (type(None),) else field.type  # an optional section
        if isinstance(section, type) and issubclass(section, msgspec.Struct):
            yield from options(section, f"{at}{field.name}.")


def written(file: str, option: str) -> tuple[bool, Any, str]:
    """Whether the option is commented out, its value, and the comment above it."""
    *section, name = option.split(".")
    lines = (CONFIGS / file).read_text().splitlines()
    pattern = re.compile(rf"^(\s*)(# )?{(section or [name])[0]}:( .*)?$")
    top = next((number for number, line in enumerate(lines) if pattern.match(line)), None)
    assert top is not None, f"{file} does not show {option}"
    at = top
    inline = re.sub(r"^.*?:\s*", "", lines[top]).startswith("{")
    if section and not inline:
        below = next((n for n in range(top + 1, len(lines)) if re.match(rf"^(# )?\s+{name}:", lines[n])), None)
        assert below is not None, f"{file} does not show {option}"
        at = below
    text = re.sub(r"^[^:]*:\s*", "", lines[at])
    value: Any = text if text.startswith("(") else yaml.safe_load(text) if text else None
    if section and inline:
        assert name in value, f"{file} does not show {option}"
        value = value[name]
    first = at
    while first > 0 and lines[first - 1].strip():
        first -= 1
    return lines[at].startswith("#"), value, "\n".join(lines[first : at + 1])


CASES = [(file, option, field) for file, struct in FILES.items() for option, field in options(struct)]


@pytest.mark.parametrize(("file", "option", "field"), CASES, ids=[f"{file}:{option}" for file, option, _ in CASES])
def test_an_option_is_shown_with_its_default(file: str, option: str, field: msgspec.structs.FieldInfo) -> None:
    commented, value, comment = written(file, option)
    assert "# " in comment, f"{option} is not explained"
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
        return  # a section: its options have defaults
    if field.required:
        assert commented, f"{option} has no default, so it cannot be shown as one"
        return
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = None if value and str(value).startswith("(") else field.default_factory()
    if default is None:
        assert commented or value is None, f"{option} has no default, so it cannot be shown as one"
        if not isinstance(value, str):
            msgspec.convert(value, field.type | None)
    else:
        assert value == msgspec.json.decode(msgspec.json.encode(default))


@pytest.mark.parametrize(("file", "option", "field"), CASES, ids=[f"{file}:{option}" for file, option, _ in CASES])
def test_a_number_has_a_unit(file: str, option: str, field: msgspec.structs.FieldInfo) -> None:
    _, _, comment = written(file, option)
    name = option.rpartition(".")[2]
    numeric = re.search(r"\b(int|float)\b", str(field.type)) or isinstance(field.default, float)
    if numeric and not isinstance(field.default, bool) and not UNIT_IN_NAME.search(name):
        assert name in COUNTED, f"what does {option} count?"
        assert COUNTED[name] in comment, f"{option} does not say what it counts"


@pytest.mark.parametrize("option", ControllerConfig.__struct_fields__)
def test_an_option_that_needs_a_restart_says_so(option: str) -> None:
    _, _, comment = written("controller.yaml", option)
    assert ("(restart)" in comment) == (option not in RELOADED)


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_shown_that_is_no_option(file: str) -> None:
    known = {option.rpartition(".")[2] for option, _ in options(FILES[file])}
    shown = re.findall(r"^(?:# )?\s*([a-z_]+):(?: |$)", (CONFIGS / file).read_text(), re.MULTILINE)
    assert set(shown) - known == set()


@pytest.mark.parametrize("file", FILES)
def test_the_file_as_it_is_has_all_defaults(file: str) -> None:
    document = yaml.safe_load((CONFIGS / file).read_text()) or {}
    assert msgspec.convert(document, FILES[file]) == FILES[file]()
