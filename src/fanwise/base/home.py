"""Where experiments live: `$FANWISE_HOME`, else `~/fanwise`, with one folder for each.

Knows the folder and what makes one of its folders an experiment; what is in a record is the business of `tune`. Loads
next to nothing, so that a shell can complete names with it.
"""

import os
from pathlib import Path

RECORD_NAME = "events.jsonl"


def experiments_folder() -> Path:
    """The folder that holds all experiments: `$FANWISE_HOME`, else `~/fanwise`. It need not exist yet.

    Raises:
        ValueError: it is set to a URL.
    """
    home = os.environ.get("FANWISE_HOME") or "~/fanwise"
    if "://" in home:
        raise ValueError(
            f"FANWISE_HOME={home!r}: experiments are in a folder, since a record needs one. Set it to a folder.\n"
            f"Checkpoints can be at a URL: Tuner(checkpoints={home!r}), run.save({home.rstrip('/') + '/run.pt'!r})."
        )
    return Path(home).expanduser()


def list_experiments() -> list[str]:
    """Names of all experiments in `experiments_folder()`, sorted; folders without a record are none."""
    try:
        with os.scandir(experiments_folder()) as entries:
            names = [entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, RECORD_NAME))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names)
