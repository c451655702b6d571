"""The arguments of the programs of searchers_live.py, and the length of their trainings. The standard library alone."""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from live_training import FOLDER_VARIABLE

MAX_EPOCHS = 25


def arguments(methods: Iterable[str]) -> argparse.Namespace:
    """`--method NAME --seconds S --workers N --seed K --folder DIR`.

    The folder has the data, gets the marks and whatever the library writes; the trainings are told of it.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=list(methods), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    os.environ[FOLDER_VARIABLE] = str(args.folder)
    return args
