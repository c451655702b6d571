"""A search whose tuner was killed goes on: what had been decided stands, and what ran runs again."""

import math
from collections.abc import Mapping

from fanwise.tune.core import events
from fanwise.tune.core.actions import Action, Finish, Judged, Reason, Start
from fanwise.tune.core.events import Event, Outcome
from fanwise.tune.core.inline import handle
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.schedulers import ASHA, FIFO, Scheduler, Status
from fanwise.tune.space import Space, uniform
from fanwise.tune.stopping import StoppingCriterion

SPACE = Space({"x": uniform(0, 1)})


class Search:
    """A SearchCore and its searcher, which answers at once; each event gives the actions that it leads to."""

    def __init__(self, scheduler: Scheduler, *, n_workers: int = 1, trials: int = 100, retries: int = 0) -> None:
        scheduler.begin(SPACE, 0)
        self.searcher = scheduler.searcher
        stop = StoppingCriterion(max_num_trials_started=trials)
        self.core = SearchCore(scheduler, SPACE, stop, n_workers=n_workers, retries=retries)
        self.hand(events.Begin(0.0))

    def hand(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        handle(self.core, event, self.searcher, lambda _, made: actions.extend(made))
        return actions

    def report(self, trial_id: int, values: Mapping[str, object], *, attempt: int = 0, checkpoint: str = "") -> None:
        self.hand(events.Ready(0.0, trial_id, attempt))
        self.hand(events.Reported(0.0, trial_id, attempt, values, checkpoint=checkpoint or None))

    def started_by(self, event: Event) -> list[tuple[int, int, int, str | None]]:
        """Trial, attempt, iteration and checkpoint of what this starts."""
        actions = [action for action in self.hand(event) if isinstance(action, Start)]
        return [(action.trial_id, action.attempt, action.from_iter, action.checkpoint) for action in actions]


def random_search() -> Scheduler:
    return FIFO(metric="loss", random_seed=0)


def test_what_ran_starts_again_from_its_last_checkpoint() -> None:
    search = Search(random_search(), n_workers=2)
    search.report(1, {"loss": 0.5}, checkpoint="1-0-1")
    search.report(1, {"loss": 0.4})
    assert search.started_by(events.Resumed(9.0)) == [(0, 1, 0, None), (1, 1, 1, "1-0-1")]


def test_with_more_workers_each_trial_still_runs_once() -> None:
    search = Search(random_search(), n_workers=1)
    assert search.started_by(events.Resumed(9.0, n_workers=3)) == [(0, 1, 0, None), (1, 0, 0, None), (2, 0, 0, None)]


def test_with_fewer_workers_the_others_wait_their_turn() -> None:
    search = Search(random_search(), n_workers=2)
    assert search.started_by(events.Resumed(9.0, n_workers=1)) == [(0, 1, 0, None)]
    search.hand(events.Ended(9.0, 0, 1, Outcome("exit", "crashed")))
    assert search.started_by(events.Free(9.0, 0, 1)) == [(1, 1, 0, None)]


def test_another_stopping_criterion_holds_before_anything_starts() -> None:
    search = Search(random_search(), trials=1)
    search.report(0, {"loss": 0.5})
    search.hand(events.Ended(1.0, 0, 0))
    search.hand(events.Free(1.0, 0, 0))
    assert search.core.is_finished
    more = StoppingCriterion(max_num_trials_started=2).to_json()
    assert search.started_by(events.Resumed(1.0, stop=more)) == [(1, 0, 0, None)]


def test_a_trial_that_had_been_told_to_stop_does_not_run_again() -> None:
    search = Search(ASHA(metric="loss", max_t=9, grace_period=1, reduction_factor=3, type="stopping", random_seed=0))
    for trial_id in range(3):  # each worse than the one before: the third leaves at its first rung
        search.report(trial_id, {"loss": float(trial_id)}, checkpoint=f"{trial_id}-0-1")
        if trial_id < 2:
            search.hand(events.Ended(1.0, trial_id, 0))
            search.hand(events.Free(1.0, trial_id, 0))
    actions = search.hand(events.Resumed(9.0))
    assert Judged(2, 0, Status.STOPPED) in actions
    assert [action.trial_id for action in actions if isinstance(action, Start)] == [3]


def test_a_trial_that_had_failed_by_its_own_fault_does_not_run_again() -> None:
    search = Search(random_search())
    search.report(0, {"loss": math.nan})
    actions = search.hand(events.Resumed(9.0))
    assert Judged(0, 0, Status.FAILED, Reason("nan", "the objective reported loss=nan")) in actions
    assert [action.trial_id for action in actions if isinstance(action, Start)] == [1]


def test_a_crashed_trial_whose_retry_was_promised_is_tried_again() -> None:
    search = Search(random_search(), retries=1)
    search.report(0, {"loss": 0.5}, checkpoint="0-0-1")
    search.hand(events.Ended(1.0, 0, 0, Outcome("signal", "killed")))
    assert search.started_by(events.Resumed(9.0)) == [(0, 1, 1, "0-0-1")]


def test_a_retry_that_was_promised_before_ctrl_c_happens_after_a_resume() -> None:
    search = Search(random_search(), retries=1)
    search.report(0, {"loss": 0.5}, checkpoint="0-0-1")
    crash = events.Ended(1.0, 0, 0, Outcome("out-of-memory", "killed"))
    search.hand(crash)
    search.hand(events.Interrupt(1.5))
    assert any(isinstance(action, Finish) for action in search.hand(events.Free(2.0, 0, 0)))
    assert search.core.counts.num_trials_failed == 0
    assert search.started_by(events.Resumed(9.0)) == [(0, 1, 1, "0-0-1")]


def test_the_checkpoints_that_may_still_be_needed_are_known_afterwards() -> None:
    search = Search(random_search(), n_workers=2)
    search.report(0, {"loss": 0.5}, checkpoint="0-0-1")
    search.report(1, {"loss": 0.5}, checkpoint="1-0-1")
    search.report(1, {"loss": 0.4}, checkpoint="1-0-2")
    search.hand(events.Resumed(9.0))
    assert search.core.checkpoints == {"0-0-1", "1-0-2"}
