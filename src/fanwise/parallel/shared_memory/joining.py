"""What a process needs that joins a run: the state of the others, in the memory that all share.

The first of the members writes it when all stand at the beginning of the same step, and the one that joins reads it
once it is taken in. It is a checkpoint in all but the file; see `Run.save`.
"""

import io
from collections.abc import Mapping
from typing import Any

import torch

from ..checkpoints.snapshots import snapshot
from .memory import SharedMemory

_STATE = 1 << 43  # in the upper half of the memory; below are the gradients


def write_state(memory: SharedMemory, state: Mapping[str, Any]) -> None:  # Any: numbers, tensors and state_dicts
    stream = io.BytesIO()
    torch.save(snapshot(dict(state)), stream)  # of tensors in main memory: who joins has another GPU, or none yet
    data = stream.getvalue()
    memory.write(_STATE, len(data).to_bytes(8, "little") + data)


def read_state(memory: SharedMemory) -> dict[str, Any]:  # Any: as written
    """Its tensors are this process's own, in main memory."""
    size = int.from_bytes(memory.read(_STATE, 8), "little")
    state: dict[str, Any] = torch.load(io.BytesIO(memory.read(_STATE + 8, size)), weights_only=False)
    return state
