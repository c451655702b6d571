"""The protocol of a run in several processes, played: real members and views, random order, kills and joins, one seed."""

import pytest

from fanwise.testing.played_members import PlayedRun


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_of_a_run_does_every_transaction_once(seed: int) -> None:
    run = PlayedRun(seed, members=2 + seed % 3, transactions=8, kills=seed % 5, respawns=seed % 2 == 1)
    run.play()
    numbers = list(range(8))
    if not run.is_lost:
        assert run.result == numbers
