"""``python -m elasticd.agent --config FILE``: the agent as a process. Its log goes to stderr or the configured file."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from ..protocol import times
from ..protocol.errors import ElasticError
from ..runtime.config import report, with_line
from . import config
from .daemon import AgentDaemon

log = logging.getLogger(__name__)


def main() -> int:
    """Return the exit code: 0 after a signal, 2 for a wrong configuration, 1 for a bug (the log contains its
    traceback).
    """
    parser = argparse.ArgumentParser(prog="elasticd.agent", description="The agent of one server.")
    parser.add_argument("--config", type=Path, required=True, help="configuration file, see configs/agent.yaml")
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

        def read() -> config.AgentConfig:
            return config.load(arguments.config, arguments.log_format)

        options = read()
        options.begin_log()
        AgentDaemon(options, os.environ).run(again=read)
    except ElasticError as error:
        print(f"elasticd.agent: {with_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except Exception:  # the edge of the process
        log.exception("the agent ends because of a bug")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
