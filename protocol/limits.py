"""What a job may ask for at most: `elasticctl` checks a job file by it, and the controller every job again."""

from __future__ import annotations

MAX_GPUS = 4096
MAX_GPU_TYPES = 16  # that one job names
MAX_GPU_TYPE = 100  # characters
MAX_GPU_MEMORY_BYTES = 1 << 50
MAX_VIRTUAL_WORKERS = 4096
MAX_STEPS = 2**53  # what JSON and a float hold exactly
MAX_KEPT_CHECKPOINTS = 1000
COMPARE_EVERY = 512  # steps, if a job does not say it: comparing costs less than a thousandth of them
MAX_COMPARE_EVERY = 1_000_000
MAX_MODEL = 200  # characters
MAX_RUN_AGAIN = 1000  # times, of a command that has not called `elastic.join()`
MAX_PRIORITY = 1_000_000  # and as much below 0
PRIORITIES = {"low": -10, "normal": 0, "high": 10}
MIN_STEPS_PER_S = 1e-6  # a step of eleven days
MAX_STEPS_PER_S = 1e9
MAX_STATUS_BYTES = 64 << 10  # of a worker: its agent sends many of them in one message
MAX_METRICS = 256  # of a job, reported by its script
MAX_METRIC_NAME = 100  # characters
MAX_SNAPSHOT_BYTES = 64 << 20  # of the files of one, together
MAX_SNAPSHOT_FILES = 20_000
SNAPSHOT_PART_BYTES = 512 << 10  # less than a client's request or a record of etcd may have
MAX_NOTE = 2000  # characters of a worker's note
