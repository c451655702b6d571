"""Checkpoint files, which are replaced as a whole and can be read with `torch.load`.

torch.load(path)["model"]               state_dict of the model; "model2" for a second run.step
                ["optimizer"]           state_dict of the optimizer; "optimizer2" for a second run.step
                ["step"]                counts of the step, and gradients that wait for step.update
                ["kept"][name]          state_dict of an object of run.keep
                ["run"]                 settings, and position in the data
                ["rows"]                reported values
                ["random"]              random state of torch on the CPU
                ["random_of_device"]    random state of torch on the GPU

If the process is killed while it writes, the file is either the old one or the new one.
"""

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .location import Location, StrPath, download, location_of, upload

FORMAT = 1


def serialize(content: Mapping[str, Any]) -> memoryview:
    """Return the bytes of a checkpoint. Blocks until tensors of other devices are in main memory."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **_in_main_memory(dict(content))}, buffer)
    return buffer.getbuffer()


def _in_main_memory(value: Any) -> Any:
    """Copy tensors of other devices in nested containers, so that a machine without such a device can load them."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        is_view = tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > tensor.nbytes
        return tensor.clone() if is_view else tensor  # torch.save would write the whole storage of a view
    if type(value) in (dict, OrderedDict):
        copied = type(value)((name, _in_main_memory(member)) for name, member in value.items())
        if type(value) is OrderedDict:
            vars(copied).update(vars(value))  # the state_dict of a module has version numbers in `_metadata`
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_in_main_memory, value))
    return value


def write_checkpoint(location: Location, data: memoryview) -> None:
    """Write a serialized checkpoint. Blocks until the bytes have replaced the file, or the object at the URL."""
    if not isinstance(location, Path):
        upload(data, location)
        return
    location.parent.mkdir(parents=True, exist_ok=True)
    unfinished = location.with_name(f".{location.name}.unfinished")  # always one name, so kills leave at most one file
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(location)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(location.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_checkpoint(path: StrPath, weights_only: bool) -> dict[str, Any]:
    location = location_of(path)
    try:
        with location.open("rb") if isinstance(location, Path) else io.BytesIO(download(location)) as file:
            content = torch.load(file, map_location="cpu", weights_only=weights_only)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(_explain(path, error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or "run" not in content:
        raise ValueError(f"{path} was not written by run.save, or was written by an incompatible version of fanwise")
    del content["format"]
    return content


def _explain(path: StrPath, error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    if "weights_only" in str(error) or "Weights only" in str(error):
        return (
            f"{path} contains more than tensors and plain values: {first_line}\n"
            f"If you trust the file, run.restore(path, weights_only=False) loads it, which executes code in the file."
        )
    return f"{path} cannot be read as a checkpoint: {first_line}"
