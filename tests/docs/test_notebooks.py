"""The code cells of the notebooks run in order, as in a fresh kernel."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs").rglob("*.ipynb"))


def run(cells: list[str], file: str) -> list[Any]:
    """Run cells; return the value of the last expression of each, as a kernel shows it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(cells):
        tree = ast.parse(cell)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{file} cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), f"{file} cell {number}", "eval"), names))
    return shown


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_each_of_its_results_is_a_table_with_values(notebook: Path) -> None:
    pytest.importorskip("pandas")
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "outputs are not kept: they grow old"
    shown = run(["".join(cell["source"]) for cell in cells], notebook.name)
    assert len(shown) >= 4
    for value in shown:
        assert value.size
        assert not value.isna().to_numpy().any(), value


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
