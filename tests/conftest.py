"""Property tests try the same examples in every run, so that a test fails because of a change. `make hunt` tries others."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("hunt", derandomize=False, print_blob=True)
settings.load_profile("same")
