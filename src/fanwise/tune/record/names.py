"""Names of experiments, and files in their folders.

$FANWISE_HOME or ~/fanwise               see `base.home`
  train-2026-03-01-14-05-09-1f3a7c/      one folder per experiment
    events.jsonl                         the events, see `event_file` for the other files of the record
    output/0.out, 0.err, 0-1.out, ...    output of trial 0, and of its second attempt
"""

import re
import time
from pathlib import Path

MAX_NAME_CHARS = 100

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


def output_stem(folder: Path, trial_id: int, attempt: int) -> str:
    """Return the path of an attempt's output files without the suffix."""
    return str(folder / "output" / (f"{trial_id}-{attempt}" if attempt else str(trial_id)))


def output_files(folder: Path, trial_id: int, attempt: int) -> tuple[Path, Path]:
    """Return the files of an attempt's standard output and standard error. They need not exist."""
    stem = output_stem(folder, trial_id, attempt)
    return Path(f"{stem}.out"), Path(f"{stem}.err")


def check_name(name: str) -> str:
    """Return `name` if it is a valid experiment name.

    Raises ValueError if `name` is empty, longer than 100 characters, starts with a dot, or contains characters other
    than ASCII letters, digits, dot, underscore and hyphen.
    """
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(
            f"the name of an experiment must have at most {MAX_NAME_CHARS} characters, got {len(name)}: {name!r}"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid experiment name. Use letters, digits, dot, underscore and hyphen, "
            f"and no dot at the start; for example {_sanitize(name)!r}."
        )
    return name


def new_name(objective_name: str, wall_s: float, entropy: bytes) -> str:
    """Return a name for a new experiment.

    Args:
        objective_name: name of the user's function. Invalid characters are replaced.
        wall_s: Unix time in seconds.
        entropy: at least three random bytes, which distinguish experiments that are created in the same second.
    """
    timestamp = time.strftime("%Y-%m-%d-%H-%M-%S", time.localtime(wall_s))
    return check_name(f"{_sanitize(objective_name)[:60]}-{timestamp}-{entropy[:3].hex()}")


def _sanitize(text: str) -> str:
    """Return a valid name: replace each run of invalid characters with a hyphen, and shorten the result."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:MAX_NAME_CHARS] or "experiment"
