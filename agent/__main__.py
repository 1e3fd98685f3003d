"""``python -m elasticd.agent --config FILE``: the agent as a process. Its log goes to stderr or the configured file."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from ..protocol import times
from ..protocol.errors import ElasticError
from ..runtime import logs
from . import config
from .daemon import AgentDaemon

log = logging.getLogger(__name__)


def main() -> int:
    """The exit code: 0 after a signal, 2 for a wrong configuration, 1 for a bug (the log says which)."""
    parser = argparse.ArgumentParser(prog="elasticd.agent", description="The agent of one server.")
    parser.add_argument("--config", type=Path, required=True, help="configuration file, see configs/agent.yaml")
    arguments = parser.parse_args()
    try:
        times.check()
        options = config.load(arguments.config)
        log_file = Path(options.log_file).expanduser() if options.log_file else None
        try:
            logs.configure(f"agent[{options.server}]", options.log_level, log_file)
        except OSError as error:
            print(f"{arguments.config}: log_file: {error.strerror}: {options.log_file}", file=sys.stderr)
            return 2
        AgentDaemon(options, os.environ).run()
    except ElasticError as error:
        print(f"elasticd.agent: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:  # the edge of the process
        log.exception("the agent ends because of a bug")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
