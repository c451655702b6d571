"""Mutual authentication before the first frame: both sides prove that they hold the same key, and neither shows it.

    listener                                            dialer
       | ---- magic, 32 random bytes (L) ----------------> |
       | <--- magic, 32 random bytes (D), HMAC("dialer", L, D) ---
       | ---- HMAC("listener", L, D) --------------------> |

HMAC-SHA256 with the key of the pool or cluster. The role is signed too, so a proof cannot be sent back to its author.
All messages have a fixed size: no length is read from a stranger, and nothing is parsed or unpickled. Pure: random
bytes are arguments.

Invariant: `done` is only true after the proof of the other side was correct.
"""

import hashlib
import hmac
import struct

from ...base.errors import AuthenticationError, WireError
from ...base.text import printable_line

MAGIC = b"fanwise1"
NONCE_SIZE = 32
KEY_SIZE_MIN = 16
_PROOF_SIZE = 32


def _proof(key: bytes, role: bytes, listener_nonce: bytes, dialer_nonce: bytes) -> bytes:
    return hmac.new(key, MAGIC + role + listener_nonce + dialer_nonce, hashlib.sha256).digest()


def _check_key(key: bytes, nonce: bytes) -> None:
    if len(key) < KEY_SIZE_MIN:
        raise ValueError(f"a key needs at least {KEY_SIZE_MIN} bytes, got {len(key)}")
    if len(nonce) != NONCE_SIZE:
        raise ValueError(f"a nonce has {NONCE_SIZE} bytes, got {len(nonce)}")


class ListenerHandshake:
    """The listener's side. Send `first()`, pass received bytes to `receive`, and send its results."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        _check_key(key, nonce)
        self._key = key
        self._nonce = nonce
        self._received = bytearray()
        self.done = False

    def first(self) -> bytes:
        return MAGIC + self._nonce

    @property
    def wants(self) -> int:
        """Number of bytes that may still be received. More would belong to the first frame."""
        return 0 if self.done else len(MAGIC) + NONCE_SIZE + _PROOF_SIZE - len(self._received)

    def receive(self, data: bytes) -> bytes:
        """Raises `AuthenticationError` as soon as it is certain that the dialer does not hold the key."""
        self._received += data
        if not MAGIC.startswith(bytes(self._received[: len(MAGIC)])):
            raise AuthenticationError("a dialer does not speak our protocol; it was closed.")
        if self.wants:
            return b""
        dialer_nonce = bytes(self._received[len(MAGIC) : len(MAGIC) + NONCE_SIZE])
        proof = bytes(self._received[len(MAGIC) + NONCE_SIZE :])
        if not hmac.compare_digest(proof, _proof(self._key, b"dialer", self._nonce, dialer_nonce)):
            raise AuthenticationError("a dialer does not hold the key; it was closed.")
        self.done = True
        return _proof(self._key, b"listener", self._nonce, dialer_nonce)


class DialerHandshake:
    """The dialer's side. Pass received bytes to `receive`, and send its results."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        _check_key(key, nonce)
        self._key = key
        self._nonce = nonce
        self._listener_nonce = b""
        self._received = bytearray()
        self.done = False

    @property
    def wants(self) -> int:
        """Number of bytes to receive before `receive` returns something new."""
        if self.done:
            return 0
        return (_PROOF_SIZE if self._listener_nonce else len(MAGIC) + NONCE_SIZE) - len(self._received)

    def receive(self, data: bytes) -> bytes:
        """Raises `AuthenticationError` if the listener does not hold the key."""
        self._received += data
        if self.wants:
            return b""
        received = bytes(self._received)
        self._received.clear()
        if not self._listener_nonce:
            return self._answer(received)
        if not hmac.compare_digest(received, _proof(self._key, b"listener", self._listener_nonce, self._nonce)):
            raise AuthenticationError("the listener does not hold the key. Was it started by the same pool?")
        self.done = True
        return b""

    def _answer(self, received: bytes) -> bytes:
        if not received.startswith(MAGIC):
            raise AuthenticationError("the listener does not speak our protocol.")
        self._listener_nonce = received[len(MAGIC) :]
        return MAGIC + self._nonce + _proof(self._key, b"dialer", self._listener_nonce, self._nonce)


# -- the hello of links between hosts ---------------------------------------------------------------------------------


PROTOCOL = 8  # increased whenever a frame or a message changes its meaning

_LAYOUT = struct.Struct("<8sH6x16s")
_MAGIC = b"fanwise\0"
HELLO_SIZE = _LAYOUT.size


class ProtocolMismatch(WireError):
    """The peer holds the secret and speaks another version of the protocol."""


def hello(version: str, protocol: int = PROTOCOL) -> bytes:
    """Return the hello of this side."""
    return _LAYOUT.pack(_MAGIC, protocol, version.encode("ascii", "replace"))


def check_hello(data: bytes, peer: str, version: str) -> None:
    """Raise `ProtocolMismatch` when the peer speaks another protocol, `WireError` when `data` is no hello.

    Args:
        data: `HELLO_SIZE` bytes.
        peer: its address, for the message.
        version: our own, for the message.
    """
    magic, protocol, peer_version = _LAYOUT.unpack(data)
    if magic != _MAGIC:
        raise WireError(f"{peer} holds the secret but is no process of fanwise. The connection was closed.")
    if protocol != PROTOCOL:
        shown = printable_line(peer_version.rstrip(b"\0").decode("ascii", "backslashreplace"))
        raise ProtocolMismatch(
            f"{peer} runs fanwise {shown} (protocol {protocol}), this process {version} (protocol {PROTOCOL}).\n"
            f"Install the same version on all hosts."
        )
