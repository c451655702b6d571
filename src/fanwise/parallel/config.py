"""Settings that determine the result of a run, their defaults, and a notice about the defaults.

A checkpoint stores the plan. The number of devices is not part of it, because it does not change the result.

By default a batch has 4 shards, or one per device if there are more devices, and each device computes with 1 thread.
Larger machines can be faster with other values, so a notice reports these defaults.
"""

import functools
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Literal

from ..tensor.random.keys import Key
from .data.position import DataPosition

Reduce = Literal["exact", "fast"]  # how gradients are added

# 1, 2, 3 and 4 devices give the same bits, and 1, 2 and 4 devices have equal shares of the work.
DEFAULT_SHARDS = 4


@dataclass(slots=True)
class Plan:
    """Shards of each global batch, threads of each device, the seed, and the position in the data.

    `reduce` is None if it was not given. The run then takes it from its checkpoint.
    """

    shards: int
    threads: int
    position: DataPosition
    reduce: Reduce | None = None

    @property
    def seed(self) -> int:
        return self.position.seed

    def key(self, name: str) -> Key:
        """Return the key from which one part of the run derives its random numbers."""
        return _key(self.seed, name)

    def state(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "threads": self.threads,
            "seed": self.seed,
            "position": self.position.state(),
            "reduce": self.reduce or "exact",
        }


@functools.lru_cache(maxsize=16)  # every step needs it
def _key(seed: int, name: str) -> Key:
    return Key(seed).fold_in(name)


def default_shards(devices: int) -> int:
    """Return the default number of shards.

    >>> [default_shards(devices) for devices in (1, 2, 3, 4, 5, 6)]
    [4, 4, 4, 4, 5, 6]
    """
    return max(DEFAULT_SHARDS, devices)


def default_notice(devices: int, *, on_cpu: bool, shards: int, given: Set[str], cpus: int) -> str:
    """Return a notice about default settings that can make the run slower, or "".

    Args:
        devices: number of devices of the run, over all processes.
        given: names of the settings that the program has set.
        cpus: number of CPUs of the machine.

    >>> print(default_notice(1, on_cpu=True, shards=4, given=set(), cpus=8))
    uses 1 of 8 CPUs: devices=4 uses 4 with the same result; shards=1, threads=8 uses all, as a plain loop does.
    >>> print(default_notice(2, on_cpu=True, shards=4, given=set(), cpus=2))
    a batch has 4 shards, so 1 to 4 devices give the same result; shards=2 can be faster, with another result.
    >>> print(default_notice(1, on_cpu=True, shards=1, given={"shards"}, cpus=8))
    uses 1 of 8 CPUs: threads=8 uses all, as a plain loop does.
    >>> default_notice(4, on_cpu=False, shards=4, given=set(), cpus=8)
    ''
    """
    if on_cpu and devices == 1 and cpus > 1 and "threads" not in given:
        used = min(cpus, shards)
        more_devices = f"devices={used} uses {used} with the same result; " if used > 1 else ""
        if used > 1 and "shards" in given:
            return f"uses 1 of {cpus} CPUs: {more_devices}threads={cpus} uses all, with another result."
        setting = f"shards=1, threads={cpus}" if used > 1 else f"threads={cpus}"
        return f"uses 1 of {cpus} CPUs: {more_devices}{setting} uses all, as a plain loop does."
    if "shards" not in given and devices < shards:
        return (
            f"a batch has {shards} shards, so 1 to {shards} devices give the same result; shards={devices} can be "
            f"faster, with another result."
        )
    return ""
