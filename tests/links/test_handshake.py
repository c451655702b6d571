"""Only who holds the key gets through the handshake, in pieces of any size and with nothing read beyond it."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import AuthenticationError
from fanwise.links.security.handshake import KEY_SIZE_MIN, MAGIC, NONCE_SIZE, DiallerHandshake, ListenerHandshake

KEY = bytes(range(32))
L, D = b"L" * NONCE_SIZE, b"D" * NONCE_SIZE


def pair(listener_key: bytes = KEY, dialler_key: bytes = KEY) -> tuple[ListenerHandshake, DiallerHandshake]:
    return ListenerHandshake(listener_key, L), DiallerHandshake(dialler_key, D)


def test_both_sides_are_done_after_three_messages() -> None:
    listener, dialler = pair()
    answer = dialler.receive(listener.first())
    assert (listener.done, dialler.done) == (False, False)
    proof = listener.receive(answer)
    assert (listener.done, dialler.done) == (True, False)
    assert dialler.receive(proof) == b""
    assert (listener.done, dialler.done) == (True, True)
    assert (listener.wants, dialler.wants) == (0, 0)


@given(st.lists(st.integers(1, 50), min_size=1))
def test_messages_may_come_in_pieces_and_nothing_beyond_them_is_wanted(pieces: list[int]) -> None:
    listener, dialler = pair()
    to_dialler, to_listener = bytearray(listener.first()), bytearray()
    turn = 0
    while not (listener.done and dialler.done):
        piece = pieces[turn % len(pieces)]
        turn += 1
        took = min(piece, dialler.wants, len(to_dialler))
        to_listener += dialler.receive(bytes(to_dialler[:took])) if took else b""
        del to_dialler[:took]
        took = min(piece, listener.wants, len(to_listener))
        to_dialler += listener.receive(bytes(to_listener[:took])) if took else b""
        del to_listener[:took]
    assert (bytes(to_dialler), bytes(to_listener)) == (b"", b"")


def test_each_side_says_exactly_how_many_bytes_it_wants() -> None:
    listener, dialler = pair()
    assert (listener.wants, dialler.wants) == (len(MAGIC) + NONCE_SIZE + 32, len(MAGIC) + NONCE_SIZE)
    first = listener.first()
    dialler.receive(first[:10])
    assert dialler.wants == len(first) - 10
    answer = dialler.receive(first[10:])
    assert dialler.wants == 32 and len(answer) == listener.wants


def test_a_dialler_with_another_key_is_refused() -> None:
    listener, dialler = pair(dialler_key=bytes(32))
    with pytest.raises(AuthenticationError, match="a dialler does not hold the key"):
        listener.receive(dialler.receive(listener.first()))
    assert not listener.done


def test_a_listener_with_another_key_is_refused() -> None:
    listener, dialler = pair()
    impostor = ListenerHandshake(bytes(32), L)
    dialler.receive(impostor.first())
    with pytest.raises(AuthenticationError, match="the listener does not hold the key"):
        dialler.receive(hmac.new(bytes(32), MAGIC + b"listener" + L + D, hashlib.sha256).digest())
    assert not dialler.done and not listener.done


@given(st.integers(0, 7), st.integers(0, 7))
def test_wrong_magic_is_refused(at: int, bit: int) -> None:
    listener, dialler = pair()
    wrong = bytearray(MAGIC)
    wrong[at] ^= 1 << bit
    with pytest.raises(AuthenticationError, match="does not speak our protocol"):
        listener.receive(bytes(wrong[: at + 1]))  # at its first wrong byte
    with pytest.raises(AuthenticationError, match="does not speak our protocol"):
        dialler.receive(bytes(wrong) + L)


@given(st.integers(0, len(MAGIC) + NONCE_SIZE + 32 - 1), st.integers(0, 7))
def test_every_changed_bit_of_the_dialler_is_refused(at: int, bit: int) -> None:
    listener, dialler = pair()
    answer = bytearray(dialler.receive(listener.first()))
    answer[at] ^= 1 << bit
    with pytest.raises(AuthenticationError):
        listener.receive(bytes(answer))
    assert not listener.done


@given(st.integers(0, 31), st.integers(0, 7))
def test_every_changed_bit_of_the_listeners_proof_is_refused(at: int, bit: int) -> None:
    listener, dialler = pair()
    proof = bytearray(listener.receive(dialler.receive(listener.first())))
    proof[at] ^= 1 << bit
    with pytest.raises(AuthenticationError):
        dialler.receive(bytes(proof))
    assert not dialler.done


def test_a_recorded_handshake_is_of_no_use_with_another_nonce() -> None:
    listener, dialler = pair()
    recorded = dialler.receive(listener.first())
    recorded_proof = listener.receive(recorded)
    again = ListenerHandshake(KEY, b"M" * NONCE_SIZE)
    with pytest.raises(AuthenticationError):
        again.receive(recorded)
    other = DiallerHandshake(KEY, b"E" * NONCE_SIZE)
    other.receive(listener.first())
    with pytest.raises(AuthenticationError):
        other.receive(recorded_proof)


def test_a_proof_cannot_be_sent_back_to_who_made_it() -> None:
    # The attacker has no key. He shows the dialler the dialler's own nonce, and sends him back his own proof.
    dialler = DiallerHandshake(KEY, D)
    answer = dialler.receive(MAGIC + D)
    with pytest.raises(AuthenticationError):
        dialler.receive(answer[-32:])
    # He has a second listener of the same pool answer the challenge of the first one: listeners only prove after they
    # have seen a proof, so he gets nothing to send back but its challenge.
    listener, other = ListenerHandshake(KEY, L), ListenerHandshake(KEY, b"M" * NONCE_SIZE)
    with pytest.raises(AuthenticationError):
        listener.receive(other.first() + bytes(32))


@pytest.mark.parametrize("side", [ListenerHandshake, DiallerHandshake])
def test_short_keys_and_nonces_are_refused(side: type[ListenerHandshake] | type[DiallerHandshake]) -> None:
    with pytest.raises(ValueError, match="a key needs at least 16 bytes, got 15"):
        side(bytes(KEY_SIZE_MIN - 1), L)
    with pytest.raises(ValueError, match="a nonce has 32 bytes, got 31"):
        side(KEY, bytes(NONCE_SIZE - 1))
