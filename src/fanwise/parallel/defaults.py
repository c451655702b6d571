"""What a run takes where nothing was said, and the one line that tells so. A quiet file: numbers in, words out.

    shards    4, and one for each of more devices: a number that does not depend on the devices, as far as that goes
    threads   1 for each device, because their number is part of the result, too

Both cost something on a machine that has more to give, and who does not know of them cannot choose otherwise.
"""

from collections.abc import Set

# 1, 2, 3 and 4 devices give the same bits, and 1, 2 and 4 have equal shares. docs/guides/parallel.md has what it costs.
DEFAULT_SHARDS = 4


def default_shards(devices: int) -> int:
    """Where nobody says.

    >>> [default_shards(devices) for devices in (1, 2, 3, 4, 5, 6)]
    [4, 4, 4, 4, 5, 6]
    """
    return max(DEFAULT_SHARDS, devices)


def notice_of(devices: int, *, on_cpu: bool, shards: int, said: Set[str], cpus: int) -> str:
    """What to know about the defaults of this run; empty: they cost nothing here.

    Args:
        devices: of the run, of all processes. shards: of each batch. said: what the user gave by name. cpus: there are.

    >>> print(notice_of(1, on_cpu=True, shards=4, said=set(), cpus=8))
    1 of 8 CPUs works: devices=4 uses 4 and gives the same bits; shards=1, threads=8 is the plain loop, on all.
    >>> print(notice_of(2, on_cpu=True, shards=4, said=set(), cpus=2))
    a batch has 4 shards, so that 1 to 4 devices give the same bits; shards=2 can be quicker, with other bits.
    >>> print(notice_of(1, on_cpu=True, shards=1, said={"shards"}, cpus=8))
    1 of 8 CPUs works: threads=8 uses all of them, as a plain loop does.
    >>> notice_of(4, on_cpu=False, shards=4, said=set(), cpus=8)
    ''
    """
    more = min(cpus, shards)
    if on_cpu and devices == 1 and cpus > 1 and "threads" not in said:
        idle = f"1 of {cpus} CPUs works"
        if more == 1:
            return f"{idle}: threads={cpus} uses all of them, as a plain loop does."
        same = f"devices={more} uses {more} and gives the same bits"
        if "shards" in said:
            return f"{idle}: {same}; threads={cpus} uses all, with other bits."
        return f"{idle}: {same}; shards=1, threads={cpus} is the plain loop, on all."
    if "shards" not in said and devices < shards:
        same = f"a batch has {shards} shards, so that 1 to {shards} devices give the same bits"
        return f"{same}; shards={devices} can be quicker, with other bits."
    return ""
