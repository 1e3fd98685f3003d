"""Exit codes of workers that mean something to the cluster, beside 0 and a script's own."""

from __future__ import annotations

NO_CHECKPOINT = 77  # a first holder that does not see the job's checkpoint: the server's fault, not the script's
