"""The schedules that Dive into Deep Learning works out by hand, played through the tuner's decisions."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fanwise.tune.core import events
from fanwise.tune.core.actions import Action, Answer, Finish, Judged, Start
from fanwise.tune.core.events import Event, Outcome
from fanwise.tune.core.search_core import SearchCore, handle_and_suggest
from fanwise.tune.schedulers import ASHA, Decision, Hyperband, Scheduler, Status, SuccessiveHalving
from fanwise.tune.searchers import Observation, Searcher, SuggestContext
from fanwise.tune.space import Space, randint
from fanwise.tune.stopping import StoppingCriterion

SPACE = Space({"x": randint(0, 1000)})
Crash = Callable[[int, int], bool]


class Numbers(Searcher):
    """0, 1, 2, ..., as many as it has."""

    def __init__(self, number: int = 1000) -> None:
        self.left = number
        self.given = 0

    def suggest(self, ask: SuggestContext) -> dict[str, object] | None:
        if self.given == self.left:
            return None
        self.given += 1
        return {"x": self.given - 1}

    def observe(self, observation: Observation) -> None: ...


@dataclass
class Table:
    """Plays a search: what an epoch of a trial takes, and its loss after it.

    Args:
        epoch_s, loss: of (trial, epoch).
        saves: whether every report comes with a checkpoint.
        crashes: whether the trial crashes instead of reporting this epoch.
    """

    scheduler: Scheduler
    n_workers: int
    epoch_s: Callable[[int, int], float] = lambda trial, epoch: 1.0
    loss: Callable[[int, int], float] = lambda trial, epoch: float(trial)
    saves: bool = True
    crashes: Crash = lambda trial, epoch: False
    starts: list[tuple[float, int, int]] = field(default_factory=list)  # time, slot, trial
    epochs: dict[int, int] = field(default_factory=dict)  # trained by each trial, all attempts together
    ends: dict[int, Status] = field(default_factory=dict)
    finish: Finish | None = None

    def run(self, until_s: float = math.inf) -> "Table":
        self.scheduler.begin(SPACE, 0)
        self.attempts: dict[int, tuple[int, int]] = {}  # trial -> attempt, epochs
        self.queue: list[tuple[float, int, int]] = []
        forever = StoppingCriterion(max_wallclock_time=math.inf)
        self.core = SearchCore(self.scheduler, SPACE, forever, n_workers=self.n_workers, max_equal_failures=None)
        self.send(events.Begin(0.0))
        while self.queue and self.queue[0][0] <= until_s:
            now_s, _, trial_id = heapq.heappop(self.queue)
            attempt, epoch = self.attempts[trial_id]
            if self.crashes(trial_id, epoch + 1):
                self.end(now_s, trial_id, Outcome("exception"))
                continue
            self.attempts[trial_id] = attempt, epoch + 1
            self.epochs[trial_id] = self.epochs.get(trial_id, 0) + 1
            name = f"{trial_id}/{epoch + 1}" if self.saves else None
            values = {"loss": self.loss(trial_id, epoch + 1), "epoch": epoch + 1}
            self.send(events.Reported(now_s, trial_id, attempt, values, checkpoint=name))
        return self

    def send(self, event: Event) -> None:
        actions: list[Action] = []
        handle_and_suggest(self.core, event, self.scheduler.searcher, lambda _, more: actions.extend(more))
        for action in actions:
            if isinstance(action, Start):
                self.attempts[action.trial_id] = action.attempt, action.from_iter
                self.starts.append((event.now_s, action.slot, action.trial_id))
                self.next_epoch(event.now_s, action.trial_id)
            elif isinstance(action, Answer) and action.decision is Decision.CONTINUE:
                self.next_epoch(event.now_s, action.trial_id)
            elif isinstance(action, Answer):
                self.end(event.now_s, action.trial_id, Outcome("stopped"))
            elif isinstance(action, Judged) and action.status is not Status.PAUSED:
                assert self.ends.setdefault(action.trial_id, action.status) is action.status, "it ends once"
            elif isinstance(action, Finish):
                self.finish = action

    def end(self, now_s: float, trial_id: int, outcome: Outcome) -> None:
        attempt, _ = self.attempts[trial_id]
        self.send(events.Ended(now_s, trial_id, attempt, outcome))
        self.send(events.Free(now_s, trial_id, attempt))

    def next_epoch(self, now_s: float, trial_id: int) -> None:
        at_s = now_s + self.epoch_s(trial_id, self.attempts[trial_id][1] + 1)
        heapq.heappush(self.queue, (at_s, len(self.starts) + sum(self.epochs.values()), trial_id))


def halving(number: int = 8, **options: object) -> Scheduler:
    """The book's: eta 2, from 2 to 10 epochs."""
    settings = {"max_t": 10, "grace_period": 2, "reduction_factor": 2, "searcher": Numbers(number), **options}
    return SuccessiveHalving(metric="loss", **settings)  # type: ignore[arg-type]


def test_asha_by_promotion_takes_the_steps_of_the_book() -> None:
    """Section 19.5, second figure: eta 2, two workers; trial 2 is slow, trial 0 the best and trial 3 the next."""
    epoch_s = {0: 1.0, 1: 1.5, 2: 5.0, 3: 1.0, 4: 4.0, 5: 1.0}
    loss = {0: 0.1, 3: 0.2, 1: 0.5, 2: 0.6, 4: 0.7, 5: 0.8}
    scheduler = ASHA(metric="loss", max_t=8, reduction_factor=2, type="promotion", searcher=Numbers())
    table = Table(scheduler, 2, lambda trial, _: epoch_s[trial], lambda trial, _: loss[trial]).run(until_s=7.5)
    assert table.starts == [
        (0.0, 0, 0),
        (0.0, 1, 1),
        (1.0, 0, 2),
        (1.5, 1, 0),  # trial 1 is there: of two the better one goes to rung 1
        (2.5, 1, 3),  # one alone on rung 1: nobody goes further
        (3.5, 1, 4),  # trial 3 is worse than trial 0, and trial 2 is not there yet
        (6.0, 0, 3),  # trial 2 is there and worse: of four the better two go on
        (7.0, 0, 0),  # two on rung 1: the better one goes to rung 2
        (7.5, 1, 5),
    ]


@pytest.mark.parametrize(("saves", "epochs"), [(True, 34), (False, 58)])
def test_a_round_of_the_book_trains_34_epochs_with_checkpoints_and_58_without(saves: bool, epochs: int) -> None:
    """Section 19.4: 8 trials to 2 epochs, 4 to 4, 2 to 8, 1 to 10: 15 runs. The best trials come first here, so that
    none of those that arrive last at a rung goes on without a pause."""
    table = Table(halving(), 1, saves=saves).run()
    assert len(table.starts) == 15
    assert sum(table.epochs.values()) == epochs
    assert table.ends == {0: Status.COMPLETED, **dict.fromkeys(range(1, 8), Status.STOPPED)}


def test_two_rounds_of_the_book_are_thirty_runs() -> None:
    table = Table(halving(16), 1).run()
    assert len(table.starts) == 30
    assert [trial for _, _, trial in table.starts] == [
        *range(8),
        0,
        1,
        2,
        3,
        0,
        1,
        0,
        *range(8, 16),
        8,
        9,
        10,
        11,
        8,
        9,
        8,
    ]


def test_who_arrives_last_at_a_rung_and_is_good_enough_goes_on_without_a_pause() -> None:
    table = Table(halving(), 1, loss=lambda trial, _: -float(trial), saves=False).run()
    assert [trial for _, _, trial in table.starts] == [*range(8), 6, 5, 4, 7, 6, 7], "trial 7 ran on to rung 1 at once"
    assert table.epochs[7] == 4 + 8 + 10


def test_promoted_trials_go_before_new_rounds_on_several_workers() -> None:
    """The book's own queue takes the trials of a round that was begun meanwhile first: it pops from the wrong end."""
    scheduler = halving(1000, max_t=4, grace_period=1)  # rounds of 4, 2, 1
    table = Table(scheduler, 2, lambda trial, epoch: 3.5 if trial == 3 else 1.0).run(until_s=6.0)
    assert [(at_s, trial) for at_s, _, trial in table.starts] == [
        (0.0, 0),
        (0.0, 1),
        (1.0, 2),
        (1.0, 3),  # the straggler of the first round
        (2.0, 4),  # meanwhile the next one begins
        (3.0, 5),
        (4.0, 6),
        (4.5, 0),  # the straggler is there: before trial 7 come trials 0 and 1
        (5.0, 1),
        (5.5, 7),
        (6.0, 0),
    ]


def test_hyperband_runs_its_brackets_in_turn() -> None:
    table = Table(Hyperband(metric="loss", max_t=9, searcher=Numbers(17)), 1).run()
    assert len(table.starts) == (9 + 3 + 1) + (5 + 1) + 3
    trained = [table.epochs[trial_id] for trial_id in range(17)]
    assert trained == [9, 3, 3, *[1] * 6, 9, *[3] * 4, 9, 9, 9]


@pytest.mark.parametrize("num_crashes", range(1, 9))
def test_a_round_shrinks_with_the_trials_that_fail(num_crashes: int) -> None:
    """On their way to rung 0 crash the first trials: of the m that are left, the best m / 2 go on, at least one."""
    table = Table(halving(), 3, crashes=lambda trial, _: trial < num_crashes).run()
    left = 8 - num_crashes
    at_rung = [sum(epochs >= level for epochs in table.epochs.values()) for level in (2, 4, 8, 10)]
    expected = [left]
    for _ in range(3):
        expected.append(max(min(expected[-1], 1), expected[-1] // 2))
    assert at_rung == expected
    assert table.finish is not None and len(table.ends) == 8


@pytest.mark.parametrize("epoch", [3, 5, 9])
def test_a_promoted_trial_that_fails_leaves_its_place_empty_and_nobody_hangs(epoch: int) -> None:
    table = Table(halving(), 2, crashes=lambda trial, at: trial == 0 and at == epoch).run()
    assert table.finish is not None and len(table.ends) == 8
    assert table.ends[0] is Status.FAILED
    assert table.epochs[1] == (10 if epoch < 9 else 8)


@pytest.mark.parametrize("number", [0, 1, 2, 5, 8, 11])
def test_a_round_makes_do_with_what_the_searcher_has(number: int) -> None:
    table = Table(halving(number), 3).run()
    assert table.finish is not None and table.finish.error is None
    assert len(table.ends) == number
    assert sum(status is Status.COMPLETED for status in table.ends.values()) == -(-number // 8)


def test_trials_that_do_not_go_on_are_over_at_once_and_their_checkpoints_go() -> None:
    table = Table(halving(80), 1).run(until_s=500.0)
    assert len(table.core.checkpoints) <= 4 + 1, "those of a round that may go on, and the best"
