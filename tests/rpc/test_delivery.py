"""Numbered messages between two tables."""

from fanwise.rpc.messages.ids import GlobalId
from fanwise.rpc.references.delivery import MOST_IN_A_BATCH, Inbox, Outbox
from fanwise.rpc.references.orders import ChildAccepted


def message(number: int) -> ChildAccepted:
    return ChildAccepted(GlobalId(0, 1, number))


def outbox(size: int) -> Outbox:
    box = Outbox()
    for number in range(1, size + 1):
        box.post(message(number))
    return box


def test_what_was_posted_is_fresh_once() -> None:
    box = outbox(2)
    assert box.fresh() == (1, (message(1), message(2)))
    box.post(message(3))
    assert box.fresh() == (3, (message(3),))


def test_an_answer_settles_all_messages_up_to_its_number() -> None:
    box = outbox(3)
    assert box.answered(2) == [message(1), message(2)]
    assert box.answered(2) == box.answered(1) == box.answered(-5) == []
    assert box.answered(99) == [message(3)]
    assert (box.first_number, list(box.unanswered)) == (4, [])


def test_only_what_was_there_at_the_last_look_is_overdue() -> None:
    box = outbox(2)
    assert box.overdue() is None
    box.post(message(3))
    assert box.overdue() == (1, (message(1), message(2), message(3)))
    box.answered(3)
    assert box.overdue() is None


def test_a_repeated_batch_is_of_limited_size() -> None:
    box = outbox(MOST_IN_A_BATCH + 5)
    box.overdue()
    again = box.overdue()
    assert again is not None and len(again[1]) == MOST_IN_A_BATCH


def test_an_inbox_hands_on_each_message_once_and_in_order() -> None:
    inbox = Inbox()
    assert inbox.take(2, (message(2), message(3))) == []
    assert inbox.take(1, (message(1),)) == [message(1), message(2), message(3)]
    assert inbox.take(1, (message(1), message(2), message(3), message(4))) == [message(4)]
    assert (inbox.up_to, inbox.ahead) == (4, {})
