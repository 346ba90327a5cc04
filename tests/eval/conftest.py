"""Makes the supporting modules importable, here and (through the inherited path) in the children that tests start."""

import sys
from pathlib import Path

SUPPORT = str(Path(__file__).parents[1] / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)
