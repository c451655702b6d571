"""How shapes fit together, in plain Python: the same on every engine. A quiet file."""

from itertools import zip_longest


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that arrays of these shapes have together; nothing is computed.

    Raises:
        ValueError: two of them differ in an axis, and neither has length 1 there.

    >>> broadcast_shapes((3, 1), (2,))
    (3, 2)
    """
    found = []
    for lengths in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wanted = {length for length in lengths if length != 1}
        if len(wanted) > 1:
            raise ValueError(f"the shapes {', '.join(str(tuple(shape)) for shape in shapes)} do not fit together")
        found.append(wanted.pop() if wanted else 1)
    return tuple(found[::-1])
