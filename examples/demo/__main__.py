"""Entry point of ``python -m examples.demo``."""

import sys

try:
    from .demo import main
except KeyboardInterrupt:  # while modules were still being imported: there is nothing to clean up yet
    sys.exit(130)

sys.exit(main())
