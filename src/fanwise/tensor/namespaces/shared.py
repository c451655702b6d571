"""What the functions of several engines share, in plain Python: shapes and Python's own numbers.

A quiet file: it knows no engine.
"""

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


_NUMBERS = {bool, int, float, complex}
_SEQUENCES = {list, tuple}


def made_of_python_numbers(x: object) -> bool:
    """Whether x is a Python number, or lists and tuples of them and nothing else.

    Then its dtype is for us to choose; numbers of an engine brought theirs along. Looks at types in bulk:
    about 10 ns a number.
    """
    kind = type(x)
    if kind not in _SEQUENCES:
        return kind in _NUMBERS
    assert isinstance(x, (list, tuple)), "the types above are lists and tuples"
    kinds = set(map(type, x))
    return kinds <= _NUMBERS or all(made_of_python_numbers(item) for item in x)


def check_fits(number: int, least_and_greatest: tuple[int, int] | None) -> None:
    """Whether a type of these limits holds the number; None: no type of integers.

    Raises:
        OverflowError: it does not. Engines take it modulo the size of the type, in silence.
    """
    if least_and_greatest is not None and not least_and_greatest[0] <= number <= least_and_greatest[1]:
        least, greatest = least_and_greatest
        raise OverflowError(
            f"the Python integer {number} does not fit into the array's type, which holds {least} to {greatest}; "
            f"convert the array first: fanwise.tensor.astype(x, dtype)"
        )
