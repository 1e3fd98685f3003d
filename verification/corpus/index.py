"""All scripts of the corpus."""

from __future__ import annotations

from .kinds import elastic, hidden, numbers, ordinary, others, tensors

SCRIPTS = (*elastic.SCRIPTS, *numbers.SCRIPTS, *tensors.SCRIPTS, *others.SCRIPTS, *hidden.SCRIPTS, *ordinary.SCRIPTS)
BY_NAME = {script.name: script for script in SCRIPTS}
