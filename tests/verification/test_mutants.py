"""Mutants of the state machines: mutated and skipped code, and whether recorded results still fit the code."""

import ast

from verification.mutants.__main__ import EQUIVALENT, equivalents, interval, misfits, table
from verification.mutants.operators import mutants

CODE = '''
def wait(self, now: float = 1.0) -> bool:
    """Wait 5 s."""
    assert now > 0
    self.log.warn(f"waits {now + 1}")
    if now >= self.until and self.ready:
        raise ValueError(f"{now + 1}")
    return False
'''


def test_conditions_and_results_are_changed_and_texts_are_not() -> None:
    changes = {(mutant.before, mutant.after) for mutant, _ in mutants("wait.py", CODE)}
    condition = "if now >= self.until and self.ready:"
    assert changes == {
        (condition, "if now > self.until and self.ready:"),
        (condition, "if now < self.until and self.ready:"),
        (condition, "if now >= self.until or self.ready:"),
        (condition, "if now >= self.until:"),
        (condition, "if self.ready:"),
        (condition, "if now >= self.until and (not self.ready):"),
        ("raise ValueError(f'{now + 1}')", "pass"),
        ("return False", "return True"),
    }


def test_each_mutant_is_taken_back_before_the_next() -> None:
    trees = [ast.unparse(tree) for _, tree in mutants("wait.py", CODE)]
    assert len(set(trees)) == len(trees)
    whole = ast.unparse(ast.parse(CODE)).splitlines()
    for text in trees:
        assert len(set(whole) - set(text.splitlines())) == 1, "one line is another one"


def test_mutants_that_are_said_to_change_nothing_are_mutants_of_the_code() -> None:
    assert misfits(equivalents(EQUIVALENT.read_text())) == []


def test_an_interval_holds_the_share_and_narrows() -> None:
    few, many = interval(9, 10), interval(900, 1000)
    assert few[0] < many[0] < 0.9 < many[1] < few[1] <= 1.0


def test_the_table_keeps_what_it_said_of_machines_that_were_not_tried_here() -> None:
    row = "| fence | 61 | 25 | 21 | 0 | 0 | 0 | 4 | 84.0 % (65 to 94) |"
    found = table({}, {}, f"| machine | mutants |\n{row}\n").splitlines()
    assert row in found
    assert found[-1].startswith("| all | ")
    assert found[-1].endswith("| 25 | 21 | 0 | 0 | 0 | 4 | 84.0 % (65 to 94) |")
