"""Whether something is nothing but Python's own numbers, as literals in a program are. A quiet file."""

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
