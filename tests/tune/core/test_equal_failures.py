"""Failures of trials that make the search fail, and their messages."""

import pytest

from fanwise.tune.core.actions import Reason, ReasonKind
from fanwise.tune.core.equal_failures import Failures, equality_key


def boom(text: str = "boom", kind: ReasonKind = "exception") -> Reason:
    return Reason(kind, text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("boom 0.16", "boom 0.92"),
        ("loss was 1e-5 at step 3", "loss was 2.5E+10 at step 40"),
        ("<Net object at 0x7fa01b>", "<Net object at 0x55AAd0>"),
        ("index -1", "index +17"),
        ("boom\nin trial 1", "boom\nafter an hour"),
    ],
)
def test_numbers_and_later_lines_are_ignored(first: str, second: str) -> None:
    assert equality_key(boom(first)) == equality_key(boom(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (boom("boom"), boom("bang")),
        (boom("boom"), boom("boom", "exit")),
        (boom("boom 1 2"), boom("boom 1")),
        (boom(""), boom("1")),
    ],
)
def test_different_words_and_kinds_are_different_reasons(first: Reason, second: Reason) -> None:
    assert equality_key(first) != equality_key(second)


def test_search_fails_if_the_first_trials_fail_alike() -> None:
    failures = Failures(3)
    assert failures.add(boom("boom 1"), has_reported=False) is None
    assert failures.add(boom("boom 2"), has_reported=True) is None
    assert failures.add(boom("boom 3"), has_reported=False) == (
        "the first 3 trials to finish all failed alike (exception): boom 3\n"
        "Fix the objective, or set max_equal_failures=None to continue after any failure."
    )
    assert failures.add(boom("boom 4"), has_reported=False) is None, "only the third outcome can fail the search"


@pytest.mark.parametrize("second", [None, boom("bang"), boom("boom", "signal")])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_different_outcome_lets_the_search_continue(second: Reason | None, index: int) -> None:
    failures = Failures(3)
    reasons: list[Reason | None] = [boom(), boom(), boom(), boom(), boom()]
    reasons[index] = second
    assert [failures.add(reason, has_reported=False) for reason in reasons] == [None] * 5


@pytest.mark.parametrize("has_reported", [True, False])
def test_timeout_is_a_failure_only_before_the_first_report(has_reported: bool) -> None:
    failures = Failures(2)
    timeout = Reason("time-out", "still running 30 s after the objective of this attempt was called (trial_timeout_s)")
    failures.add(timeout, has_reported=has_reported)
    assert (failures.add(timeout, has_reported=has_reported) is None) == has_reported
    assert (failures.all_failed(2) is None) == has_reported


def test_message_has_the_most_frequent_reason_with_its_first_example() -> None:
    failures = Failures(10)
    for text in ("bang", "boom 1", "boom 2", "crash"):
        failures.add(boom(text), has_reported=False)
    assert failures.all_failed(4) == "all 4 trials failed; 2 of them alike (exception): boom 1"


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "the only trial failed (exception): boom"), (2, "all 2 trials failed (exception): boom")],
)
def test_message_has_no_count_if_all_reasons_are_equal(number: int, text: str) -> None:
    failures = Failures(10)
    for _ in range(number):
        failures.add(boom(), has_reported=False)
    assert failures.all_failed(number) == text


def test_search_has_not_failed_without_trials_or_with_a_success_or_a_running_trial() -> None:
    failures = Failures(10)
    assert failures.all_failed(0) is None
    failures.add(boom(), has_reported=False)
    assert failures.all_failed(2) is None, "one trial is running"
    failures.add(None, has_reported=True)
    assert failures.all_failed(2) is None


def test_search_without_a_limit_never_fails() -> None:
    failures = Failures(None)
    assert [failures.add(boom(), has_reported=False) for _ in range(5)] == [None] * 5
    assert failures.all_failed(5) is None


def test_traceback_is_not_repeated_in_the_last_output() -> None:
    failures = Failures(1)
    traceback = "Traceback ...\nKeyError: 'x'\n"
    text = failures.add(Reason("exception", "KeyError: 'x'", traceback, f"epoch 1\n{traceback}"), has_reported=False)
    assert text is not None
    assert text.splitlines()[:5] == [
        "the first trial to finish failed (exception): KeyError: 'x'",
        "Traceback ...",
        "KeyError: 'x'",
        "last output:",
        "epoch 1",
    ]


def test_at_most_a_hundred_reasons_are_kept() -> None:
    failures = Failures(1000)
    words = [f"{a}{b}" for a in "abcdefghijklmn" for b in "opqrstuvwxyz"]
    for word in words:
        failures.add(boom(word), has_reported=False)
    failures.add(boom(words[3]), has_reported=False)
    assert failures.all_failed(len(words) + 1) == (
        f"all {len(words) + 1} trials failed; 2 of them alike (exception): {words[3]}"
    )
