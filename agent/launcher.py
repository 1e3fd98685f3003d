"""Executes a program as a job's owner: ``python -I -S launcher.py``, with the orders of `privileges` in its standard
input.

Warm processes of other accounts are started this way. Their interpreter belongs to the job, so only its name may be
used before root's rights are given up, and the job's variables must not affect a process that still has them.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Carry the orders out and execute the program. Does not return."""
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import privileges  # type: ignore[import-not-found]  # as a script this file belongs to no package

    orders = privileges.orders()
    command, environment = orders["command"], orders["environment"]
    try:
        privileges.join(orders["cgroups"])
        privileges.move_in(orders.get("room", ()))  # an agent older than this file sends no `room`
        if orders["drop"] is not None:
            privileges.drop(privileges.Drop(orders["drop"]))
        os.umask(orders["umask"])
        os.execve(command[0], command, environment)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be executed: {error.strerror or error}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    main()
