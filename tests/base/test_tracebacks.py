"""Tracebacks of trials show the user's lines, and fanwise's own where there are no others."""

from fanwise.base.tracebacks import _PACKAGE, of_the_user

OURS = (
    f'  File "{_PACKAGE}pool/worker.py", line 164, in _call\n    value = function(*args)\n            ^^^^^^^^^^^^^^^'
)
SENDS = f'  File "{_PACKAGE}tune/objective.py", line 46, in report\n    send_report(metrics)'
THEIRS = '  File "train.py", line 5, in train\n    report(other=1.0)\n    ^^^^^^^^^^^^^^^^^'
HEAD, ERROR = "Traceback (most recent call last):", "ValueError: the objective reported 'other'\nand so on"


def lines(*parts: str) -> str:
    return "\n".join(parts) + "\n"


def test_frames_of_ours_around_the_users_are_left_out() -> None:
    assert of_the_user(lines(HEAD, OURS, THEIRS, SENDS, ERROR)) == lines(HEAD, THEIRS, ERROR)


def test_a_traceback_of_nothing_but_ours_stays_as_it_is() -> None:
    for text in (lines(HEAD, OURS, ERROR), "", "no traceback"):
        assert of_the_user(text) == text


def test_the_same_error_once_more_as_a_note_is_left_out_and_another_one_stays() -> None:
    whole = lines(HEAD, OURS, THEIRS, ERROR)
    assert of_the_user(whole + lines("Traceback in process 7:", ERROR)) == lines(HEAD, THEIRS, ERROR)
    other = lines("Traceback in process 7:", THEIRS, "KeyError: 'x'")
    assert of_the_user(whole + other) == lines(HEAD, THEIRS, ERROR) + other
