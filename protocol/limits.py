"""Upper limits of a job's requests. `elasticctl` checks job files against them, and the controller checks every job
again.
"""

from __future__ import annotations

MAX_GPUS = 4096
MAX_GPU_TYPES = 16  # GPU types that one job may name
MAX_GPU_TYPE = 100  # characters
MAX_GPU_MEMORY_BYTES = 1 << 50
MIN_CPUS, MAX_CPUS = 0.01, 65536.0  # of a worker
MAX_SECRETS, MAX_SECRET_BYTES = 64, 64 << 10  # of a job; of one file
MAX_IMAGE = 512  # characters of the name of a container image
MIN_MEMORY_BYTES = 16 << 20  # of a worker: no interpreter begins with less
MAX_VIRTUAL_WORKERS = 4096
MAX_STEPS = 2**53  # largest count that JSON and a float hold exactly
MAX_KEPT_CHECKPOINTS = 1000
COMPARE_EVERY = 512  # steps, the default of a job: comparing costs less than a thousandth of 512 steps
MAX_COMPARE_EVERY = 1_000_000
MAX_MODEL = 200  # characters
MAX_ARRAY = 1000  # jobs of an array
MAX_AFTER = 1000  # jobs that one job waits for
MAX_RUN_AGAIN = 1000  # times, for a command that has not called `elastic.join()`
MAX_PRIORITY = 1_000_000  # the least priority is minus this
PRIORITIES = {"low": -10, "normal": 0, "high": 10}
MIN_STEPS_PER_S = 1e-6  # one step in eleven days
MAX_STEPS_PER_S = 1e9
MAX_STATUS_BYTES = 64 << 10  # of one worker: its agent sends many of them in one message
MAX_BATCH_FACTOR = 4096
MAX_RAMP_STEPS = 1_000_000_000
MAX_BATCH_CHANGES = 256  # of a job: all of them are in each status of a worker
DEFAULT_MAX_FACTOR = 8
DEFAULT_RAMP_STEPS = 100  # Elan VI-B
MAX_METRICS = 256  # that the script of one job reports
MAX_METRIC_NAME = 100  # characters
MAX_SNAPSHOT_BYTES = 64 << 20  # of the files of one snapshot together
MAX_SNAPSHOT_FILES = 20_000
SNAPSHOT_PART_BYTES = 512 << 10  # below the limits of a client's request and of a record of etcd
MAX_NOTE = 2000  # characters of a worker's note
MAX_STRAGGLERS = 32  # that one status reports
STRAGGLER_FALSE_ALARMS = 1e-6  # per sample of a sound worker, at the most (`worker.training.stragglers`)
MAX_PACES = 1024  # the same
MOST_PACE = 1000.0  # how many times longer than another one a worker may count as taking
