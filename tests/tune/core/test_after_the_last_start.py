"""No new trial may start any more: what was paused still comes to its end, as the scheduler decides."""

import math
from collections import Counter
from collections.abc import Mapping

import pytest

from fanwise.testing.played_search import PlayedSearch
from fanwise.tune.core import events
from fanwise.tune.core.actions import Answer, Finish, Start, StopStarting
from fanwise.tune.core.events import Outcome
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.schedulers import (
    ASHA,
    PBT,
    Clone,
    Decision,
    Done,
    NextTrial,
    Resume,
    Scheduler,
    Status,
    SuccessiveHalving,
    Wait,
)
from fanwise.tune.schedulers.scheduler import New
from fanwise.tune.searchers import Observation, SuggestContext
from fanwise.tune.simulate import FunctionTable, simulate
from fanwise.tune.space import Space, uniform
from fanwise.tune.stopping import StoppingCriterion

SPACE = Space({"x": uniform(0, 1), "max_epochs": 9})
LIMIT = "max_num_trials_started=2 reached"


def _loss(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
    x = config["x"]
    assert isinstance(x, float), "a hyperparameter of the space"
    return {"loss": x + 1 / epoch, "epoch": epoch}, 1.0


TABLE = FunctionTable(_loss, {"x": uniform(0, 1), "max_epochs": 9})
BUDGET = {"metric": "loss", "resource_attr": "epoch", "max_resource_attr": "max_epochs", "random_seed": 0}


@pytest.mark.parametrize("num_trials", [9, 18, 12, 7])
@pytest.mark.parametrize("n_workers", [1, 3, 20])
def test_every_round_of_successive_halving_is_finished(num_trials: int, n_workers: int) -> None:
    """9 trials a round of 1, 3 and 9 epochs. A round that the limit cuts short makes do with the trials that it has."""
    halving = SuccessiveHalving(**BUDGET, reduction_factor=3)  # type: ignore[arg-type]  # of different types
    stop = StoppingCriterion(max_num_trials_started=num_trials)
    search = simulate(halving, TABLE, stop, n_workers=n_workers, keep="attempts")
    rounds = -(-num_trials // 9)
    assert search.num_trials_completed == rounds, "the best of each round is trained to the end"
    assert search.num_trials_stopped == num_trials - rounds, "and nobody is left waiting"
    assert search.reason == f"max_num_trials_started={num_trials} reached"


def test_a_paused_trial_of_asha_goes_on_as_long_as_one_is_promotable() -> None:
    stop = StoppingCriterion(max_num_trials_started=27)
    scheduler = ASHA(**BUDGET, type="promotion", reduction_factor=3)  # type: ignore[arg-type]  # of different types
    levels: Counter[int] = Counter()

    def note(event: events.Event, actions: list[object]) -> None:
        if isinstance(event, events.Reported):
            levels[event.values["epoch"]] += 1  # type: ignore[index]  # a number

    simulate(scheduler, TABLE, stop, n_workers=27, on_event=note)  # type: ignore[arg-type]  # actions are objects
    assert levels[1] == 27 and levels[3] >= 9 and levels[9] >= 3, "one in three goes on from each level"


def train(state: float | None, config: Mapping[str, object]) -> tuple[float, Mapping[str, object]]:
    steps = (state or 0.0) + 1
    return steps, {"loss": float(config["x"]) - steps, "epoch": steps}  # type: ignore[arg-type]  # a number


def test_a_population_whose_clones_may_not_begin_trains_its_members_to_the_end() -> None:
    """Two workers, four members: they give way to each other, and those that are replaced leave no gap behind."""
    scheduler = PBT(
        metric="loss", resource_attr="epoch", max_t=8, perturbation_interval=2, population_size=4, random_seed=0
    )
    search = PlayedSearch(scheduler, SPACE, train, n_workers=2, num_trials=4)
    search.play()
    assert len({start.trial_id for start in search.starts}) == 4
    trained = {trial_id: len(values) for trial_id, values in search.values.items()}
    stopped = {end.trial_id for end in search.ends if end.status is Status.STOPPED}
    assert all(trained[trial_id] == 8 for trial_id in trained.keys() - stopped)
    assert stopped and stopped != trained.keys(), "some are replaced, by nobody, and the others reach the maximum"
    assert search.replayed() == search.actions


class Told(Scheduler):
    """A scheduler that pauses every trial at its first report and answers what the test says next."""

    def __init__(self) -> None:
        super().__init__(metric="loss")
        self.answers: list[NextTrial] = []
        self.asks: list[SuggestContext] = []

    def next(self, ask: SuggestContext) -> NextTrial:
        self.asks.append(ask)
        return self.answers.pop(0) if self.answers else New({"x": 0.5})

    def on_report(self, observation: Observation) -> Decision:
        return Decision.PAUSE if observation.iter == 1 else Decision.CONTINUE


class Search:
    """Two workers, at most two trials; both run."""

    def __init__(self) -> None:
        self.scheduler = Told()
        kept: Scheduler = self.scheduler
        stop = StoppingCriterion(max_wallclock_time=math.inf, max_num_trials_started=2)
        self.core = SearchCore(kept, SPACE, stop, n_workers=2)
        assert StopStarting(LIMIT) in self.hand(events.Begin(0.0))

    def hand(self, event: events.Event) -> list[object]:
        return list(self.core.handle(event))

    def pause(self, trial_id: int) -> list[object]:
        """It is told to pause, and its slot is free: what follows."""
        assert Answer(trial_id, Decision.PAUSE, 1) in self.hand(events.Reported(0.0, trial_id, 0, {"loss": 1.0}))
        self.hand(events.Ended(0.0, trial_id, 0, Outcome("stopped")))
        return self.hand(events.Free(0.0, trial_id, 0))


def test_new_trials_and_clones_are_no_answers_and_the_question_says_so() -> None:
    search = Search()
    search.scheduler.answers = [New({"x": 0.1}), Clone(0, {"x": 0.1, "max_epochs": 9})]
    assert search.pause(0) == []
    assert search.pause(1) == [Finish(LIMIT)]
    asks = search.scheduler.asks
    assert [(ask.no_new_configs, ask.can_start_trial) for ask in asks] == [(False, True)] * 2 + [(True, False)] * 3


def test_a_paused_trial_goes_on_and_the_search_ends_when_nothing_more_does() -> None:
    search = Search()
    search.scheduler.answers = [Wait(), Wait(), Resume(0), Wait()]
    assert search.pause(0) == []
    assert search.pause(1) == [Start(0, 1, {"x": 0.5, "max_epochs": 9}, 0)]
    for _ in range(2):
        search.hand(events.Reported(1.0, 0, 1, {"loss": 1.0}))
    search.hand(events.Ended(1.0, 0, 1, Outcome("returned")))
    assert search.hand(events.Free(1.0, 0, 1)) == [Finish(LIMIT)]


def test_nobody_is_asked_when_nobody_is_paused_or_the_scheduler_is_done() -> None:
    search = Search()
    search.hand(events.Ended(0.0, 0, 0, Outcome("exception", "boom")))
    search.hand(events.Free(0.0, 0, 0))
    assert len(search.scheduler.asks) == 2, "nobody is paused"
    search = Search()
    search.scheduler.answers = [Done()]
    search.pause(0)
    assert search.pause(1) == [Finish(LIMIT)]
    assert len(search.scheduler.asks) == 3, "it has said that it is done"


def test_the_search_waits_for_who_holds_a_trial_that_would_go_on() -> None:
    search = Search()
    search.hand(events.Command(0.0, "pause", 0))
    search.scheduler.answers = [Resume(0), Wait(), Wait()]
    search.pause(0)
    assert Finish(LIMIT) not in search.pause(1)
    assert search.hand(events.Command(1.0, "resume", 0)) == [Start(0, 1, {"x": 0.5, "max_epochs": 9}, 0)]
