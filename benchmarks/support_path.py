"""Makes the modules of `tests/support` importable, which benchmarks share with tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
