"""python -m fanwise.tune.syne_tune program.py ...: runs a program that imports syne_tune, as it is."""

import argparse
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the program as `python program.py ...` would. Usage errors exit with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m fanwise.tune.syne_tune", description="Run a program that imports syne_tune on fanwise."
    )
    parser.add_argument("program", type=Path, help="the program, a file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    asked = parser.parse_args()
    program: Path = asked.program
    if not program.is_file():
        parser.error(f"there is no file {str(program)!r}")
    sys.argv[:] = [str(program), *asked.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(program.resolve().parent)
    sys.path.insert(0, str(Path(__file__).resolve().parent / "unchanged"))
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
