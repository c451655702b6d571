"""The programs under benchmarks/ are no package: they find each other because they lie in one folder, here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
