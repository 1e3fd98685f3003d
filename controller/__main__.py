"""``python -m elasticd.controller --config FILE``: the controller as a process. Its log goes to stderr or the configured file."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from pathlib import Path

from ..protocol import times
from ..protocol.errors import ElasticError
from ..runtime import logs
from . import config
from .daemon import ControllerDaemon

log = logging.getLogger(__name__)


def main() -> int:
    """The exit code: 0 after a signal, 2 for a wrong configuration, 1 for a bug or a store that fails (see the log)."""
    parser = argparse.ArgumentParser(prog="elasticd.controller", description="The controller of a cluster.")
    parser.add_argument("--config", type=Path, required=True, help="configuration file, see configs/controller.yaml")
    arguments = parser.parse_args()
    try:
        times.check()
        options = config.load(arguments.config)
        log_file = Path(options.log_file).expanduser() if options.log_file else None
        try:
            logs.configure(f"controller[{options.cluster}]", options.log_level, log_file)
        except OSError as error:
            print(f"{arguments.config}: log_file: {error.strerror}: {options.log_file}", file=sys.stderr)
            return 2
        scheduler, profiles = (
            config.scheduler_of(options, arguments.config),
            config.profiles_of(options, arguments.config),
        )
        gc.disable()  # hundreds of thousands of records stay; looking through them for cycles takes longer than a decision
        ControllerDaemon(options, scheduler, profiles).run()
    except ElasticError as error:
        print(f"elasticd.controller: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:  # the edge of the process: nothing was promised that is not recorded
        log.exception("the controller ends; nothing that it has said is lost")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
