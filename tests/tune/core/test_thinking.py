"""A searcher that thinks: it is asked ahead, and a free worker does not wait for ever."""

from fanwise.testing.told_search import CONTINUE, SPACE, Thinks, start, suggested, tuning_of
from fanwise.tune.core.actions import (
    Action,
    Answer,
    Finish,
    Judged,
    Start,
    Suggest,
)
from fanwise.tune.schedulers import (
    Status,
)
from fanwise.tune.stopping import StoppingCriterion


def asked(actions: list[Action]) -> list[int]:
    return [action.number for action in actions if isinstance(action, Suggest)]


def test_a_searcher_that_thinks_is_asked_ahead_and_nothing_waits_for_it_but_the_free_slot() -> None:
    core = tuning_of(Thinks(), n_workers=1)
    (suggest,) = core.begin()
    assert isinstance(suggest, Suggest)
    assert (suggest.number, suggest.ask.trial_id, suggest.ask.suggest_timeout_s) == (0, 0, 2.0)
    assert core.next_tick_s == 2
    start_0, ahead = core.hand(suggested(0, 0, 1))
    assert start_0 == start(0, 0)
    assert asked([ahead]) == [1]
    assert core.next_tick_s is None, "no slot waits"
    assert core.report(0, 0, 1.0, now_s=9) == [Answer(0, CONTINUE, 1)]
    assert core.hand(suggested(1, 1, 10)) == []
    assert core.ended(0, 0, now_s=11) == [Judged(0, 0, Status.COMPLETED)]
    start_1, ahead = core.free(0, 0, now_s=11)
    assert start_1 == start(1, 0)
    assert asked([ahead]) == [2]


def test_when_the_budget_is_over_a_random_configuration_is_used_and_the_late_answer_is_ignored() -> None:
    core = tuning_of(Thinks(), n_workers=1)
    core.begin()
    assert core.tick(1.9) == []
    start_0, ahead = core.tick(2)
    assert isinstance(start_0, Start)
    assert start_0.fallback
    assert start_0.config == SPACE.check(start_0.config)
    assert asked([ahead]) == [1]
    assert core.hand(suggested(0, 5, 3)) == []
    assert core.hand(suggested(0, 5, 3, error="too late to matter")) == []
    other = tuning_of(Thinks(), n_workers=1)
    other.begin()
    assert other.tick(2)[0] == start_0, "the same seed draws the same"


def test_reports_in_the_meantime_do_not_put_the_fallback_off() -> None:
    core = tuning_of(Thinks(), n_workers=2)
    core.begin()
    core.hand(suggested(0, 0))
    assert core.next_tick_s == 2
    for now_s in (0.5, 1.0, 1.5):
        assert core.report(0, 0, 1.0, now_s=now_s)[0] == Answer(0, CONTINUE, int(2 * now_s))
    assert core.next_tick_s == 2
    start_1 = core.tick(2)[0]
    assert isinstance(start_1, Start)
    assert (start_1.trial_id, start_1.fallback) == (1, True)


def test_a_searcher_that_fails_after_the_end_changes_nothing() -> None:
    core = tuning_of(Thinks(), StoppingCriterion(max_num_evaluations=1), n_workers=1)
    core.begin()
    core.hand(suggested(0, 0))
    core.report(0, 0, 1.0)
    reason = "max_num_evaluations=1 reached"
    assert core.run(0)[-1] == Finish(reason)
    assert core.hand(suggested(1, None, 1, "oops")) == []
    assert core.core.is_finished
