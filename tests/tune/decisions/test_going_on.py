"""A search whose tuner was killed goes on: what had been decided stands, and what ran runs again."""

import math
from collections.abc import Mapping

from fanwise.tune.decisions import facts
from fanwise.tune.decisions.driving import handle
from fanwise.tune.decisions.facts import Fact, Outcome
from fanwise.tune.decisions.orders import Finish, Judged, Order, Reason, Start
from fanwise.tune.decisions.tuning import Tuning
from fanwise.tune.schedulers import ASHA, FIFO, Scheduler, Status
from fanwise.tune.space import Space, uniform
from fanwise.tune.stopping import StoppingCriterion

SPACE = Space({"x": uniform(0, 1)})


class Search:
    """A Tuning and its searcher, which answers at once; each fact gives the orders that it leads to."""

    def __init__(self, scheduler: Scheduler, *, n_workers: int = 1, trials: int = 100, retries: int = 0) -> None:
        scheduler.begin(SPACE, 0)
        self.searcher = scheduler.searcher
        stop = StoppingCriterion(max_num_trials_started=trials)
        self.tuning = Tuning(scheduler, SPACE, stop, n_workers=n_workers, retries=retries)
        self.hand(facts.Begin(0.0))

    def hand(self, fact: Fact) -> list[Order]:
        orders: list[Order] = []
        handle(self.tuning, fact, self.searcher, lambda _, made: orders.extend(made))
        return orders

    def report(self, trial_id: int, values: Mapping[str, object], *, attempt: int = 0, checkpoint: str = "") -> None:
        self.hand(facts.Ready(0.0, trial_id, attempt))
        self.hand(facts.Reported(0.0, trial_id, attempt, values, checkpoint=checkpoint or None))

    def started_by(self, fact: Fact) -> list[tuple[int, int, int, str | None]]:
        """Trial, attempt, iteration and checkpoint of what this starts."""
        orders = [order for order in self.hand(fact) if isinstance(order, Start)]
        return [(order.trial_id, order.attempt, order.from_iter, order.checkpoint) for order in orders]


def random_search() -> Scheduler:
    return FIFO(metric="loss", random_seed=0)


def test_what_ran_starts_again_from_its_last_checkpoint() -> None:
    search = Search(random_search(), n_workers=2)
    search.report(1, {"loss": 0.5}, checkpoint="1-0-1")
    search.report(1, {"loss": 0.4})
    assert search.started_by(facts.Resumed(9.0)) == [(0, 1, 0, None), (1, 1, 1, "1-0-1")]


def test_with_more_workers_each_trial_still_runs_once() -> None:
    search = Search(random_search(), n_workers=1)
    assert search.started_by(facts.Resumed(9.0, n_workers=3)) == [(0, 1, 0, None), (1, 0, 0, None), (2, 0, 0, None)]


def test_with_fewer_workers_the_others_wait_their_turn() -> None:
    search = Search(random_search(), n_workers=2)
    assert search.started_by(facts.Resumed(9.0, n_workers=1)) == [(0, 1, 0, None)]
    search.hand(facts.Ended(9.0, 0, 1, Outcome("exit", "crashed")))
    assert search.started_by(facts.Free(9.0, 0, 1)) == [(1, 1, 0, None)]


def test_another_stopping_criterion_holds_before_anything_starts() -> None:
    search = Search(random_search(), trials=1)
    search.report(0, {"loss": 0.5})
    search.hand(facts.Ended(1.0, 0, 0))
    search.hand(facts.Free(1.0, 0, 0))
    assert search.tuning.is_finished
    more = StoppingCriterion(max_num_trials_started=2).to_json()
    assert search.started_by(facts.Resumed(1.0, stop=more)) == [(1, 0, 0, None)]


def test_a_trial_that_had_been_told_to_stop_does_not_run_again() -> None:
    search = Search(ASHA(metric="loss", max_t=9, grace_period=1, reduction_factor=3, type="stopping", random_seed=0))
    for trial_id in range(3):  # each worse than the one before: the third leaves at its first rung
        search.report(trial_id, {"loss": float(trial_id)}, checkpoint=f"{trial_id}-0-1")
        if trial_id < 2:
            search.hand(facts.Ended(1.0, trial_id, 0))
            search.hand(facts.Free(1.0, trial_id, 0))
    orders = search.hand(facts.Resumed(9.0))
    assert Judged(2, 0, Status.STOPPED) in orders
    assert [order.trial_id for order in orders if isinstance(order, Start)] == [3]


def test_a_trial_that_had_failed_by_its_own_fault_does_not_run_again() -> None:
    search = Search(random_search())
    search.report(0, {"loss": math.nan})
    orders = search.hand(facts.Resumed(9.0))
    assert Judged(0, 0, Status.FAILED, Reason("nan", "the objective reported loss=nan")) in orders
    assert [order.trial_id for order in orders if isinstance(order, Start)] == [1]


def test_a_crashed_trial_whose_retry_was_promised_is_tried_again() -> None:
    search = Search(random_search(), retries=1)
    search.report(0, {"loss": 0.5}, checkpoint="0-0-1")
    search.hand(facts.Ended(1.0, 0, 0, Outcome("signal", "killed")))
    assert search.started_by(facts.Resumed(9.0)) == [(0, 1, 1, "0-0-1")]


def test_a_retry_that_was_promised_before_ctrl_c_happens_after_a_resume() -> None:
    search = Search(random_search(), retries=1)
    search.report(0, {"loss": 0.5}, checkpoint="0-0-1")
    crash = facts.Ended(1.0, 0, 0, Outcome("out-of-memory", "killed"))
    search.hand(crash)
    search.hand(facts.Interrupt(1.5))
    assert any(isinstance(order, Finish) for order in search.hand(facts.Free(2.0, 0, 0)))
    assert search.tuning.counts.num_trials_failed == 0
    assert search.started_by(facts.Resumed(9.0)) == [(0, 1, 1, "0-0-1")]


def test_the_checkpoints_that_may_still_be_needed_are_known_afterwards() -> None:
    search = Search(random_search(), n_workers=2)
    search.report(0, {"loss": 0.5}, checkpoint="0-0-1")
    search.report(1, {"loss": 0.5}, checkpoint="1-0-1")
    search.report(1, {"loss": 0.4}, checkpoint="1-0-2")
    search.hand(facts.Resumed(9.0))
    assert search.tuning.checkpoints == {"0-0-1", "1-0-2"}
