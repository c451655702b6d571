"""Only who holds the key gets through the handshake, in pieces of any size and with nothing read beyond it."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import AuthenticationError
from fanwise.links.security.handshake import KEY_SIZE_MIN, MAGIC, NONCE_SIZE, DialerHandshake, ListenerHandshake

KEY = bytes(range(32))
L, D = b"L" * NONCE_SIZE, b"D" * NONCE_SIZE


def pair(listener_key: bytes = KEY, dialer_key: bytes = KEY) -> tuple[ListenerHandshake, DialerHandshake]:
    return ListenerHandshake(listener_key, L), DialerHandshake(dialer_key, D)


def test_both_sides_are_done_after_three_messages() -> None:
    listener, dialer = pair()
    answer = dialer.receive(listener.first())
    assert (listener.done, dialer.done) == (False, False)
    proof = listener.receive(answer)
    assert (listener.done, dialer.done) == (True, False)
    assert dialer.receive(proof) == b""
    assert (listener.done, dialer.done) == (True, True)
    assert (listener.wants, dialer.wants) == (0, 0)


@given(st.lists(st.integers(1, 50), min_size=1))
def test_messages_may_come_in_pieces_and_nothing_beyond_them_is_wanted(pieces: list[int]) -> None:
    listener, dialer = pair()
    to_dialer, to_listener = bytearray(listener.first()), bytearray()
    turn = 0
    while not (listener.done and dialer.done):
        piece = pieces[turn % len(pieces)]
        turn += 1
        took = min(piece, dialer.wants, len(to_dialer))
        to_listener += dialer.receive(bytes(to_dialer[:took])) if took else b""
        del to_dialer[:took]
        took = min(piece, listener.wants, len(to_listener))
        to_dialer += listener.receive(bytes(to_listener[:took])) if took else b""
        del to_listener[:took]
    assert (bytes(to_dialer), bytes(to_listener)) == (b"", b"")


def test_each_side_says_exactly_how_many_bytes_it_wants() -> None:
    listener, dialer = pair()
    assert (listener.wants, dialer.wants) == (len(MAGIC) + NONCE_SIZE + 32, len(MAGIC) + NONCE_SIZE)
    first = listener.first()
    dialer.receive(first[:10])
    assert dialer.wants == len(first) - 10
    answer = dialer.receive(first[10:])
    assert dialer.wants == 32 and len(answer) == listener.wants


def test_a_dialer_with_another_key_is_refused() -> None:
    listener, dialer = pair(dialer_key=bytes(32))
    with pytest.raises(AuthenticationError, match="a dialer does not hold the key"):
        listener.receive(dialer.receive(listener.first()))
    assert not listener.done


def test_a_listener_with_another_key_is_refused() -> None:
    listener, dialer = pair()
    impostor = ListenerHandshake(bytes(32), L)
    dialer.receive(impostor.first())
    with pytest.raises(AuthenticationError, match="the listener does not hold the key"):
        dialer.receive(hmac.new(bytes(32), MAGIC + b"listener" + L + D, hashlib.sha256).digest())
    assert not dialer.done and not listener.done


@given(st.integers(0, 7), st.integers(0, 7))
def test_wrong_magic_is_refused(at: int, bit: int) -> None:
    listener, dialer = pair()
    wrong = bytearray(MAGIC)
    wrong[at] ^= 1 << bit
    with pytest.raises(AuthenticationError, match="does not speak our protocol"):
        listener.receive(bytes(wrong[: at + 1]))  # at its first wrong byte
    with pytest.raises(AuthenticationError, match="does not speak our protocol"):
        dialer.receive(bytes(wrong) + L)


@given(st.integers(0, len(MAGIC) + NONCE_SIZE + 32 - 1), st.integers(0, 7))
def test_every_changed_bit_of_the_dialer_is_refused(at: int, bit: int) -> None:
    listener, dialer = pair()
    answer = bytearray(dialer.receive(listener.first()))
    answer[at] ^= 1 << bit
    with pytest.raises(AuthenticationError):
        listener.receive(bytes(answer))
    assert not listener.done


@given(st.integers(0, 31), st.integers(0, 7))
def test_every_changed_bit_of_the_listeners_proof_is_refused(at: int, bit: int) -> None:
    listener, dialer = pair()
    proof = bytearray(listener.receive(dialer.receive(listener.first())))
    proof[at] ^= 1 << bit
    with pytest.raises(AuthenticationError):
        dialer.receive(bytes(proof))
    assert not dialer.done


def test_a_recorded_handshake_is_of_no_use_with_another_nonce() -> None:
    listener, dialer = pair()
    recorded = dialer.receive(listener.first())
    recorded_proof = listener.receive(recorded)
    again = ListenerHandshake(KEY, b"M" * NONCE_SIZE)
    with pytest.raises(AuthenticationError):
        again.receive(recorded)
    other = DialerHandshake(KEY, b"E" * NONCE_SIZE)
    other.receive(listener.first())
    with pytest.raises(AuthenticationError):
        other.receive(recorded_proof)


def test_a_proof_cannot_be_sent_back_to_who_made_it() -> None:
    # The attacker has no key. He shows the dialer the dialer's own nonce, and sends him back his own proof.
    dialer = DialerHandshake(KEY, D)
    answer = dialer.receive(MAGIC + D)
    with pytest.raises(AuthenticationError):
        dialer.receive(answer[-32:])
    # He has a second listener of the same pool answer the challenge of the first one: listeners only prove after they
    # have seen a proof, so he gets nothing to send back but its challenge.
    listener, other = ListenerHandshake(KEY, L), ListenerHandshake(KEY, b"M" * NONCE_SIZE)
    with pytest.raises(AuthenticationError):
        listener.receive(other.first() + bytes(32))


@pytest.mark.parametrize("side", [ListenerHandshake, DialerHandshake])
def test_short_keys_and_nonces_are_refused(side: type[ListenerHandshake] | type[DialerHandshake]) -> None:
    with pytest.raises(ValueError, match="a key needs at least 16 bytes, got 15"):
        side(bytes(KEY_SIZE_MIN - 1), L)
    with pytest.raises(ValueError, match="a nonce has 32 bytes, got 31"):
        side(KEY, bytes(NONCE_SIZE - 1))
