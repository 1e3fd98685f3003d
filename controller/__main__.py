"""``python -m elasticd.controller --config FILE``: the controller as a process. Its log goes to stderr or the configured file."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
from pathlib import Path

from ..protocol import times
from ..protocol.errors import ElasticError
from ..runtime.config import report, with_line
from . import config
from .daemon import ControllerDaemon

log = logging.getLogger(__name__)


def main() -> int:
    """Run the controller, and return the exit code.

    0: after a signal; 2: wrong configuration; 1: a bug, or a store that fails (see the log).
    """
    parser = argparse.ArgumentParser(prog="elasticd.controller", description="The controller of a cluster.")
    parser.add_argument("--config", type=Path, required=True, help="configuration file, see configs/controller.yaml")
    parser.add_argument("--check", action="store_true", help="say what is wrong with the configuration, and end")
    parser.add_argument("--log-format", choices=["text", "json"], help="in place of log_format in the configuration")
    parser.add_argument("--options", action="store_true", help="print the options that hold, as JSON, and end")
    arguments = parser.parse_args()
    if arguments.check:
        return report(arguments.config, config.mistakes(arguments.config))
    try:
        if arguments.options:
            print(json.dumps(config.described(arguments.config)))
            return 0
        times.check()

        def read() -> config.Configuration:
            return config.read(arguments.config, arguments.log_format)

        configuration = read()
        configuration.options.begin_log()
        gc.disable()  # hundreds of thousands of records stay; looking through them for cycles takes longer than a decision
        daemon = ControllerDaemon(configuration)
        daemon.run(again=read)
    except ElasticError as error:
        print(f"elasticd.controller: {with_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except Exception:  # the edge of the process: nothing was promised that is not recorded
        log.exception("the controller ends; nothing that it has said is lost")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
