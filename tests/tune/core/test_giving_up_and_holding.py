"""Paused trials that a scheduler gives up, and trials that a person holds, whatever the scheduler says of them."""

import math
from collections.abc import Mapping

import pytest

from fanwise.tune.core import events
from fanwise.tune.core.actions import Action, Answer, Discard, Finish, Judged, Start, Suggest
from fanwise.tune.core.events import Outcome
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.schedulers import Decision, NextTrial, Resume, Scheduler, Status, Stop, Wait
from fanwise.tune.schedulers.scheduler import New
from fanwise.tune.searchers import Observation, SuggestContext
from fanwise.tune.space import Space
from fanwise.tune.stopping import StoppingCriterion

SPACE = Space({"depth": 3})
CONTINUE, PAUSE = Decision.CONTINUE, Decision.PAUSE


class Scripted(Scheduler):
    """Answers what the test says next; `ends` are those that it heard of."""

    def __init__(self) -> None:
        super().__init__(metric="loss")
        self.answers: list[NextTrial] = []
        self.decision = CONTINUE
        self.ends: list[tuple[int, Status]] = []

    def next(self, ask: SuggestContext) -> NextTrial:
        return self.answers.pop(0) if self.answers else Wait()

    def on_report(self, observation: Observation) -> Decision:
        return self.decision

    def on_end(self, trial_id: int, status: Status) -> None:
        self.ends.append((trial_id, status))


class Stage:
    """Two workers and as many trials, both running."""

    def __init__(self) -> None:
        self.scheduler = Scripted()
        forever = StoppingCriterion(max_wallclock_time=math.inf)
        self.core = SearchCore(self.scheduler, SPACE, forever, n_workers=2)
        config: Mapping[str, object] = {"depth": 3}
        self.scheduler.answers = [New(config), New(config)]
        assert self.core.handle(events.Begin(0.0)) == [start(0, slot=0), start(1, slot=1)]

    def report(self, trial_id: int, decision: Decision, *, attempt: int = 0, saved: str | None = None) -> list[Action]:
        self.scheduler.decision = decision
        return self.core.handle(events.Reported(0.0, trial_id, attempt, {"loss": 0.5}, checkpoint=saved))

    def end(self, trial_id: int, *, attempt: int = 0) -> list[Action]:
        return self.core.handle(events.Ended(0.0, trial_id, attempt, Outcome("stopped")))

    def free(self, trial_id: int, *, attempt: int = 0) -> list[Action]:
        return self.core.handle(events.Free(0.0, trial_id, attempt))

    def command(self, what: str, trial_id: int) -> list[Action]:
        return self.core.handle(events.Command(0.0, what, trial_id))  # type: ignore[arg-type]  # one of three words

    def pause(self, trial_id: int, saved: str | None = None) -> list[Action]:
        """The scheduler pauses it, and its slot is free."""
        self.report(trial_id, PAUSE, saved=saved)
        assert self.end(trial_id) == [Judged(trial_id, 0, Status.PAUSED)]
        return self.free(trial_id)


def start(trial_id: int, slot: int, attempt: int = 0, from_iter: int = 0, checkpoint: str | None = None) -> Start:
    return Start(trial_id, attempt, {"depth": 3}, slot, from_iter, checkpoint)


def test_a_paused_trial_that_is_given_up_is_over_its_checkpoint_goes_and_the_scheduler_is_asked_again() -> None:
    stage = Stage()
    stage.pause(0, saved="0/1")
    stage.scheduler.answers = [Stop(0), New({"depth": 3})]
    stage.report(1, CONTINUE)
    assert stage.scheduler.ends == [(0, Status.STOPPED)]
    assert stage.core.counts.num_trials_stopped == 1
    assert stage.scheduler.answers == []
    stage.command("resume", 0)
    assert stage.core.checkpoints == {"0/1"}, "it is the best so far; the best one's checkpoint stays"


def test_the_orders_of_giving_up_tell_a_reader_that_the_trial_has_stopped() -> None:
    stage = Stage()
    stage.scheduler.decision = CONTINUE
    stage.core.handle(events.Reported(0.0, 1, 0, {"loss": 0.1}))
    stage.pause(0, saved="0/1")
    stage.end(1)
    stage.scheduler.answers = [Stop(0)]
    actions = stage.free(1)
    assert actions[:2] == [Judged(0, 0, Status.STOPPED), Discard(0, "0/1")]
    assert isinstance(actions[-1], Finish)


def test_a_trial_is_given_up_while_its_process_is_still_ending() -> None:
    stage = Stage()
    stage.pause(1)
    stage.scheduler.answers = [Stop(0)]
    stage.report(0, PAUSE, saved="0/1")
    assert stage.scheduler.ends == [], "it holds its slot until it is gone"
    assert stage.end(0) == [Judged(0, 0, Status.PAUSED)]
    assert stage.free(0)[0] == Judged(0, 0, Status.STOPPED)
    assert stage.scheduler.ends == [(0, Status.STOPPED)]


@pytest.mark.parametrize("answer", [Stop(0), Resume(0)])
def test_only_a_paused_trial_can_be_given_up_or_resumed_and_only_once(answer: NextTrial) -> None:
    stage = Stage()
    stage.pause(0)
    stage.scheduler.answers = [Stop(0), answer]
    stage.report(1, CONTINUE)
    actions = [*stage.end(1), *stage.free(1)]
    (finish,) = [action for action in actions if isinstance(action, Finish)]
    assert finish.error == (
        f"the scheduler raised ValueError: Scripted.next() returned {answer!r}, but that trial is not paused; "
        "paused are: none"
    )


def test_a_person_does_not_resume_what_the_scheduler_has_paused() -> None:
    stage = Stage()
    stage.command("pause", 0)
    stage.pause(0)
    assert stage.command("resume", 0) == []
    stage.scheduler.answers = [Resume(0)]
    assert stage.report(1, CONTINUE) == [Answer(1, CONTINUE, 1), start(0, slot=0, attempt=1)]


def test_a_trial_that_a_person_holds_goes_on_when_both_the_scheduler_and_the_person_say_so() -> None:
    stage = Stage()
    stage.pause(0)
    stage.command("pause", 0)
    stage.scheduler.answers = [Resume(0)]
    assert stage.report(1, CONTINUE) == [Answer(1, CONTINUE, 1)]
    assert stage.scheduler.answers == []
    assert stage.command("resume", 0) == [start(0, slot=0, attempt=1)]


def test_a_hold_that_is_let_go_while_the_trial_is_still_ending_holds_nothing() -> None:
    stage = Stage()
    stage.command("pause", 0)
    assert stage.report(0, CONTINUE, saved="0/1") == [Answer(0, PAUSE, 1)]
    stage.command("resume", 0)
    stage.end(0)
    assert stage.free(0) == [start(0, slot=0, attempt=1, from_iter=1, checkpoint="0/1")]


def test_the_scheduler_cannot_resume_a_trial_that_only_a_person_has_paused() -> None:
    stage = Stage()
    stage.command("pause", 0)
    stage.report(0, CONTINUE)
    stage.end(0)
    stage.scheduler.answers = [Resume(0)]
    stage.free(0)
    stage.end(1)
    finish = stage.free(1)[-1]
    assert isinstance(finish, Finish) and finish.kind == "scheduler"
    assert not any(isinstance(action, Suggest) for action in stage.free(1))
