"""Each scenario produces its recorded events."""

from pathlib import Path

import pytest

from verification.world.scenarios import files, play_file


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_a_scenario_goes_as_it_is_written_down(path: Path) -> None:
    text = path.read_text()
    assert play_file(text) == text, f"if this is right: python -m verification.world.scenarios --rewrite {path.stem}"
