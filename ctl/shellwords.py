"""Refusal of shell syntax in a job's command. Pure.

A job's command is executed as it is, without a shell: `python a.py && python b.py` would hand `&&`, `python` and `b.py`
to the first program as arguments, and the job would "finish" without its second half. So shell operators are refused at
submission, with the words to write instead. In a command of one line they count where they are not quoted, as in a
shell. Words of a list are never quoted, so there only whole operators count, and neither the value of an option (`awk
-F "|"`) nor the last word (`find -exec ... ";"`).
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..protocol.errors import UserError

QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?|<<?<?)(?:&\d*)?[^<>=].*|(?:\d*|&)(?:>>?|<<?<?)(?:&(?:\d+|-))?", re.DOTALL)
OPERATORS = ("&&", "||", "|", "|&", ";", "&")
VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{|\()|`|^~(?=/|$)")
WHOLE = frozenset((*OPERATORS, ">", ">>", "<", "2>", "&>", "2>&1"))  # operators among the words of a list
TAKE_OPERATORS = ("[", "[[", "expr", "find", "test")  # programs that accept operators as arguments
LONGEST_SUGGESTION = 300  # characters of a suggested command


def words_of(where: str, text: str) -> list[str]:
    """Return the words of a command that is one text. Raises UserError, naming `where`, if the command needs a shell."""
    # A backslash at the end continues the line.
    joined = QUOTED.sub(lambda found: "" if found[0] == "\\\n" else found[0], text)
    try:
        words = shlex.split(joined)
    except ValueError as error:
        raise UserError(f"{where}: {text!r} cannot be split into words: {error}") from None
    bare = QUOTED.sub(lambda found: "x" * len(found[0]), joined)  # quoted text is never an operator
    for line in bare.strip().splitlines()[1:]:
        if line.strip() and not line.lstrip().startswith("-"):
            raise UserError(f"{where}: has several lines, which are for a shell, {_instead(text.strip(), '')}")
    for word in bare.split():
        if word in OPERATORS or REDIRECTION.fullmatch(word):
            raise UserError(f"{where}: {word} is for a shell, {_instead(text.strip(), word)}")
        if word.endswith(";"):
            raise UserError(f"{where}: ; is for a shell, {_instead(text.strip(), ';')}")
        if (found := VARIABLE.search(word)) is not None:
            raise UserError(f"{where}: {word[found.start() :]} is for a shell, {_instead(text.strip(), found[0])}")
    return words


def check_list(where: str, words: Sequence[str], typed: bool) -> None:
    """Raise UserError, naming `where`, if one of `words` is a shell operator. typed: on a command line, not in a file."""
    if not words or Path(words[0]).name in TAKE_OPERATORS:
        return
    for before, word in itertools.pairwise(words[:-1]):
        if word in WHOLE and not before.startswith("-"):
            line = " ".join(each if each in WHOLE else shlex.quote(each) for each in words)
            raise UserError(f"{where}: {word} is for a shell, {_instead(line, word, typed)}")


def _instead(line: str, word: str, typed: bool = False) -> str:
    """Return the words to write instead of `line`, in which `word` is shell syntax."""
    if len(line) > LONGEST_SUGGESTION:
        line = "..."
    shell = (
        f"-- bash -c {shlex.quote(line)}" if typed else f"command: [bash, -c, {json.dumps(line, ensure_ascii=False)}]"
    )
    if ">" in word:
        return f"and none runs the command: leave it out (`elasticctl logs` shows the output), or write {shell}"
    if word.startswith(("$", "`", "~")):
        return f"and none runs the command: write its value, or {shell}"
    return f"and none runs the command: write {shell}"
