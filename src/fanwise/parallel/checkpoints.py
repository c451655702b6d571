"""Files of checkpoints: one file, replaced as a whole or not at all, which plain `torch.load` reads.

torch.load(path)["model"]             the state_dict of the model, without prefixes
                ["optimizer"]         of the optimizer; "model2", "optimizer2" for a second run.step
                ["step"]              its counts, and gradients of a window that is open
                ["kept"][name]        of what run.keep registered
                ["run"], ["rows"], ["random"]   the plan and the place in the data; reports; torch's random state
"""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FORMAT = 1


def write(path: Path, content: Mapping[str, Any]) -> None:  # Any: numbers, tensors and state_dicts
    """Blocks until the file is on the disk under its name. What was there before stays until then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")  # of one name, so that a kill leaves no more than one
    try:
        with unfinished.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path, weights_only: bool) -> dict[str, Any]:  # Any: as written
    """What `write` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no checkpoint of a run, or holds objects that only `weights_only=False` loads.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=weights_only)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(_why_not(path, error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or "run" not in content:
        raise ValueError(f"{path} is no checkpoint that run.save wrote, or one of another version.")
    return content


def _why_not(path: Path, error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    if "weights_only" in str(error) or "Weights only" in str(error):
        return (
            f"{path} holds more than tensors and plain values: {first_line}\n"
            f"If you wrote it yourself, run.restore(path, weights_only=False) loads it; that executes what is in it."
        )
    return f"{path} cannot be read as a checkpoint: {first_line}"
