"""How any process of the suite runs: clock, driver loop, transport, configuration, logs, readiness. No torch here."""
