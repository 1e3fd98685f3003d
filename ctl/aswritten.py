"""Values of a user's YAML file that arrive as they are written, as texts: variables, words of a command, a sweep's lists.

YAML's rules for numbers, times and truth would turn 010 into 8, 1_000 into 1000 and yes into true.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from ..protocol.errors import UserError
from ..runtime.config import repeated

TEXT = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"


def of_job(document: yaml.Node, file: Path) -> None:
    """Keep such values of a job file as texts. Raises UserError, also for a field that stands twice."""
    refuse_repeated(document, file)
    if not isinstance(document, yaml.MappingNode):
        return
    pairs = []
    for key, value in document.value:
        kept = {"env": lambda node: _variables(node, file), "command": _words, "sweep": _lists}.get(key.value)
        pairs.append((key, value if kept is None else kept(value)))
    document.value = pairs


def of_sweep(document: yaml.Node, file: Path) -> None:
    """Keep the values of a sweep's file as texts. Raises UserError, also for a list whose name stands twice."""
    refuse_repeated(document, file)
    if isinstance(document, yaml.MappingNode):
        document.value = _lists(document).value


def refuse_repeated(document: yaml.Node, file: Path) -> None:
    """Raise UserError if a field stands twice. YAML would take the last one."""
    for line, field in repeated(document):
        raise UserError(f"{file}: line {line}: {field} is given twice: keep one of them")


# The functions below return copies: an anchor may share a node with other fields.


def _variables(node: yaml.Node, file: Path) -> yaml.Node:
    if not isinstance(node, yaml.MappingNode):
        return node
    pairs: list[tuple[yaml.Node, yaml.Node]] = []
    for key, value in node.value:
        if key.tag == MERGE:
            several = isinstance(value, yaml.SequenceNode)
            merged = [_variables(each, file) for each in (value.value if several else [value])]
            pairs.append((key, yaml.SequenceNode("tag:yaml.org,2002:seq", merged, value.start_mark, value.end_mark)))
            continue
        if _is_empty(value):
            where = f"{file}: line {key.start_mark.line + 1}: env.{key.value}"
            raise UserError(f"{where}: has no value; write '' for an empty one")
        pairs.append((_text(key), _text(value)))
    return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)


def _lists(node: yaml.Node) -> yaml.Node:
    if not isinstance(node, yaml.MappingNode):
        return node
    pairs = [(_text(key) if key.tag != MERGE else key, _words(_text(value))) for key, value in node.value]
    return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)


def _words(node: yaml.Node) -> yaml.Node:
    if not isinstance(node, yaml.SequenceNode):
        return node
    return yaml.SequenceNode(node.tag, [_text(each) for each in node.value], node.start_mark, node.end_mark)


def _text(node: yaml.Node) -> yaml.Node:
    if not isinstance(node, yaml.ScalarNode) or _is_empty(node):
        return node
    return yaml.ScalarNode(TEXT, node.value, node.start_mark, node.end_mark, node.style)


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.value and node.style is None
