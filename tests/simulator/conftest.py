"""The campaigns of `verification` are not installed: they are imported from the root of the repository.

Appended, not put first, so that folders at the root never hide an installed module.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
