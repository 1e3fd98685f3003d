"""Property tests try the same examples in every run, so that a test fails because of a change. `make hunt` tries others."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no failure.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("hunt", UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("same")
