"""Mutual authentication before the first frame: both sides prove that they hold the same key, neither shows it.

    listener                                            dialler
       | ---- magic, 32 random bytes (L) ----------------> |
       | <--- magic, 32 random bytes (D), HMAC("dialler", L, D) ---
       | ---- HMAC("listener", L, D) --------------------> |

HMAC-SHA256 under the key of the pool or cluster. The role is part of what is signed, so a proof cannot be sent back
to the one who made it. All messages have a fixed size: no length is read from a stranger, and nothing of a stranger
is parsed, let alone unpickled. Knows no socket and no chance: random bytes come in as arguments.

Invariant: `done` becomes true only after the other side's proof was right.
"""

import hashlib
import hmac

from ...base.errors import AuthenticationError

MAGIC = b"fanwise1"
NONCE_SIZE = 32
KEY_SIZE_MIN = 16
_PROOF_SIZE = 32


def _proof(key: bytes, role: bytes, listener_nonce: bytes, dialler_nonce: bytes) -> bytes:
    return hmac.new(key, MAGIC + role + listener_nonce + dialler_nonce, hashlib.sha256).digest()


def _check_key(key: bytes, nonce: bytes) -> None:
    if len(key) < KEY_SIZE_MIN:
        raise ValueError(f"a key needs at least {KEY_SIZE_MIN} bytes, got {len(key)}")
    if len(nonce) != NONCE_SIZE:
        raise ValueError(f"a nonce has {NONCE_SIZE} bytes, got {len(nonce)}")


class ListenerHandshake:
    """The side that was dialled. Send `first()`; feed what comes; send what `receive` returns."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        _check_key(key, nonce)
        self._key = key
        self._nonce = nonce
        self._got = bytearray()
        self.done = False

    def first(self) -> bytes:
        return MAGIC + self._nonce

    @property
    def wants(self) -> int:
        """How many bytes may still be read for this handshake; more would belong to the first frame."""
        return 0 if self.done else len(MAGIC) + NONCE_SIZE + _PROOF_SIZE - len(self._got)

    def receive(self, data: bytes) -> bytes:
        """Raises `AuthenticationError` as soon as the dialler cannot be one of ours."""
        self._got += data
        if not MAGIC.startswith(bytes(self._got[: len(MAGIC)])):
            raise AuthenticationError("a dialler does not speak our protocol; it was closed.")
        if self.wants:
            return b""
        dialler_nonce = bytes(self._got[len(MAGIC) : len(MAGIC) + NONCE_SIZE])
        proof = bytes(self._got[len(MAGIC) + NONCE_SIZE :])
        if not hmac.compare_digest(proof, _proof(self._key, b"dialler", self._nonce, dialler_nonce)):
            raise AuthenticationError("a dialler does not hold the key; it was closed.")
        self.done = True
        return _proof(self._key, b"listener", self._nonce, dialler_nonce)


class DiallerHandshake:
    """The side that dials. Feed what comes; send what `receive` returns."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        _check_key(key, nonce)
        self._key = key
        self._nonce = nonce
        self._listener_nonce = b""
        self._got = bytearray()
        self.done = False

    @property
    def wants(self) -> int:
        """How many bytes may still be read before `receive` must be asked again."""
        if self.done:
            return 0
        return (_PROOF_SIZE if self._listener_nonce else len(MAGIC) + NONCE_SIZE) - len(self._got)

    def receive(self, data: bytes) -> bytes:
        """Raises `AuthenticationError` when the listener is not one of ours."""
        self._got += data
        if self.wants:
            return b""
        got = bytes(self._got)
        self._got.clear()
        if not self._listener_nonce:
            return self._answer(got)
        if not hmac.compare_digest(got, _proof(self._key, b"listener", self._listener_nonce, self._nonce)):
            raise AuthenticationError("the listener does not hold the key. Was it started by the same pool?")
        self.done = True
        return b""

    def _answer(self, got: bytes) -> bytes:
        if not got.startswith(MAGIC):
            raise AuthenticationError("the listener does not speak our protocol.")
        self._listener_nonce = got[len(MAGIC) :]
        return MAGIC + self._nonce + _proof(self._key, b"dialler", self._listener_nonce, self._nonce)
