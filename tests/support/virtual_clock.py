"""A clock for tests."""


class VirtualClock:
    """A `Clock` that stands still until `advance` is called."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s

    def advance(self, by_s: float) -> None:
        assert by_s >= 0
        self._now_s += by_s
