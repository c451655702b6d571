"""Which device hands what to which, and in which order parts are added. A quiet file: numbers only.

    tree of 5:   0 <- 1   2 <- 3   |   0 <- 2   |   0 <- 4          the levels of `tree_levels`, summed to the left
    ring of 3:   0 -> 1 -> 2 -> 0                                    `ring_hops`, for one slice a device at a time
    all pairs:   0 <-> 3   1 <-> 2   |   0 <-> 2   3 <-> 1 ...       `exchanges`

Copies that share no device can run at the same time, so hops are given in an order in which neighbours share none
wherever that is possible. The tree is that of `parallel.shards`, so sums along it have the bits of a run.
"""

from collections.abc import Iterator

Hop = tuple[int, int]  # from one device, to another


def tree_levels(num_devices: int) -> list[list[Hop]]:
    """Levels of the tree that sums into device 0: no device is twice in one level. Backwards it spreads the sum.

    >>> tree_levels(5)
    [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    """
    levels, step = [], 1
    while step < num_devices:
        targets = range(0, num_devices - step, 2 * step)
        levels.append([(target + step, target) for target in targets])
        step *= 2
    return levels


def ring_hops(num_devices: int, first: int) -> Iterator[tuple[int, int, int]]:
    """One way round the ring: (from, to, slice), in num_devices - 1 steps of one slice a device.

    Args:
        first: the slice that device 0 hands on in the first step; device i begins with slice first + i.

    >>> list(ring_hops(3, first=0))
    [(0, 1, 0), (2, 0, 2), (1, 2, 1), (0, 1, 2), (2, 0, 1), (1, 2, 0)]
    """
    in_waves = [*range(0, num_devices, 2), *range(1, num_devices, 2)]
    for step in range(num_devices - 1):
        for source in in_waves:
            yield source, (source + 1) % num_devices, (source + first - step) % num_devices


def exchanges(num_devices: int) -> Iterator[Hop]:
    """Every ordered pair of devices once, in rounds as of a tournament in which each device meets one other.

    >>> list(exchanges(3))
    [(1, 2), (2, 1), (0, 2), (2, 0), (0, 1), (1, 0)]
    """
    # The method of circle: one seat stays, the others move on. With an odd number one device rests each round.
    seats = [*range(num_devices), *([-1] if num_devices % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = [pair for pair in zip(seats[:half], reversed(seats[half:]), strict=True) if -1 not in pair]
        yield from pairs
        yield from ((right, left) for left, right in pairs)
        seats = [seats[0], seats[-1], *seats[1:-1]]
