"""The folder of the experiments: `$FANWISE_HOME`, or `~/fanwise`. Imports little, for shell completion."""

import os
from pathlib import Path

RECORD_NAME = "events.jsonl"


def experiments_folder() -> Path:
    """Return the folder that contains all experiments. It need not exist.

    Raises:
        ValueError: FANWISE_HOME is a URL.
    """
    home = os.environ.get("FANWISE_HOME") or "~/fanwise"
    if "://" in home:
        raise ValueError(
            f"FANWISE_HOME={home!r}: experiments are in a folder, since a record needs one. Set it to a folder.\n"
            f"Checkpoints can be at a URL: Tuner(checkpoints={home!r}), run.save({home.rstrip('/') + '/run.pt'!r})."
        )
    return Path(home).expanduser()


def list_experiments() -> list[str]:
    """Return the sorted names of the folders in `experiments_folder()` that have a record."""
    try:
        with os.scandir(experiments_folder()) as entries:
            names = [entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, RECORD_NAME))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names)
