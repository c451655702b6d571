"""Names and folders of experiments.

    $FANWISE_HOME or ~/fanwise               base.home
      train-2026-03-01-14-05-09-1f3a7c/      one folder an experiment
        record.sqlite                        its record
        output/0.out, 0.err, 0-1.out, ...    what trial 0 printed, and its second attempt

Knows names and folders; does not open a record.
"""

import re
import time
from pathlib import Path

from ...base.home import experiments_folder as experiments_folder
from ...base.home import list_experiments as list_experiments

MAX_NAME_CHARS = 100

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


def output_stem(folder: Path, trial_id: int, attempt: int) -> str:
    """The path of an attempt's output files, without the ending."""
    return str(folder / "output" / (f"{trial_id}-{attempt}" if attempt else str(trial_id)))


def output_files(folder: Path, trial_id: int, attempt: int) -> tuple[Path, Path]:
    """The files that standard output and standard error of an attempt go to. They need not exist."""
    stem = output_stem(folder, trial_id, attempt)
    return Path(f"{stem}.out"), Path(f"{stem}.err")


def check_name(name: str) -> str:
    """Return `name` if it can name an experiment.

    Raises:
        ValueError: it is empty, longer than 100 characters, starts with a dot, or holds something else than ASCII
            letters, digits, dot, underscore and hyphen.
    """
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(
            f"the name of an experiment has at most {MAX_NAME_CHARS} characters, got {len(name)}: {name!r}"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name an experiment. Use letters, digits, dot, underscore and hyphen, "
            f"and no dot at the start; for example {_cleaned(name)!r}."
        )
    return name


def new_name(objective_name: str, wall_s: float, entropy: bytes) -> str:
    """A name for a new experiment: of the objective, the local time and three random bytes.

    Args:
        objective_name: name of the user's function; characters that no name may hold are replaced.
        wall_s: seconds since 1970.
        entropy: random bytes; the first three are used, so that two searches that begin in the same second differ.
    """
    moment = time.strftime("%Y-%m-%d-%H-%M-%S", time.localtime(wall_s))
    return check_name(f"{_cleaned(objective_name)[:60]}-{moment}-{entropy[:3].hex()}")


def _cleaned(text: str) -> str:
    """`text` with every run of forbidden characters made one hyphen."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:MAX_NAME_CHARS] or "experiment"
