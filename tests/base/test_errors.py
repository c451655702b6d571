"""How the errors of the tree read."""

import pytest

from fanwise.base.errors import RecordError, RemoteError


@pytest.mark.parametrize("message", ["the disk is full.", "the disk is full!", "is the disk full?"])
def test_the_anchor_follows_a_sentence_after_a_space(message: str) -> None:
    assert str(RecordError(message)) == f"{message} See: fanwise explain record"


@pytest.mark.parametrize("message", ["KeyError: 'x'", "no memory", "1.", ""])
def test_a_message_that_is_no_sentence_is_ended_before_the_anchor(message: str) -> None:
    error = RemoteError(message)
    assert str(error) == f"{message.rstrip('.')}. See: fanwise explain remote"
    assert error.message == message
