"""The keys of a link between hosts: one for each direction, and a new one after every so many records.

    hello of the dialler, 32 drawn bytes   }  sent within TLS 1.3 --HKDF (RFC 5869)--> secret of each direction
    hello of the listener, 32 drawn bytes  }                                           secret --HKDF--> key, next secret

As in QUIC (RFC 9001), TLS proves who is there and keeps the secrets from everybody else, and the records have a
protection of their own: AES-256-GCM, a nonce that counts the records under one key. Nobody else ever has a key, so a
record that was changed, left out, sent twice, or in the other direction does not open.

A key seals 2^19 records of 64 KiB: an eleventh of what TLS 1.3 allows (RFC 8446, 5.5: 2^24.5 records of 16 KiB).
Opens no socket. Loads `cryptography`.
"""

import secrets
import struct
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ...base.errors import WireError

SHARE_SIZE = 32
TAG_SIZE = 16
RECORDS_A_KEY = 1 << 19

_KEY_SIZE = 32
_NONCE = struct.Struct("<4xQ")

Buffer = bytes | bytearray | memoryview


def new_share() -> bytes:
    """What one side adds to the keys of one link. Told to the other within TLS, and to nobody else."""
    return secrets.token_bytes(SHARE_SIZE)


class RecordKey:
    """Seals, or opens, the records of one direction of a link. One thread at a time; never copied into a fork."""

    def __init__(self, secret: bytes, records_a_key: int = RECORDS_A_KEY) -> None:
        self._secret = secret
        self._records_a_key = records_a_key
        self._next_key()

    def _next_key(self) -> None:
        drawn = _expanded(self._secret, b"fanwise: key of records, 1", 2 * _KEY_SIZE)
        self._aead, self._secret = AESGCM(drawn[:_KEY_SIZE]), drawn[_KEY_SIZE:]
        self._count = 0

    def _nonce(self) -> bytes:
        if self._count == self._records_a_key:
            self._next_key()
        self._count += 1
        return _NONCE.pack(self._count)

    def seal(self, plain: Buffer, into: memoryview) -> None:
        """The next record. `into` is longer than `plain` by `TAG_SIZE`."""
        self._aead.encrypt_into(self._nonce(), plain, None, into)

    def open(self, sealed: Buffer, into: memoryview) -> None:
        """What the next record holds. `into` is shorter than `sealed` by `TAG_SIZE`.

        Raises WireError when it is not the next one that the other side has sealed.
        """
        try:
            self._aead.decrypt_into(self._nonce(), sealed, None, into)
        except InvalidTag:
            raise WireError("bytes came that the other side did not send.") from None


def record_keys(side: Literal["dialler", "listener"], own: bytes, theirs: bytes) -> tuple[RecordKey, RecordKey]:
    """What this side seals with, and what it opens with.

    Args:
        own, theirs: the share of each side. Never used for another link.
    """
    shares = own + theirs if side == "dialler" else theirs + own
    of_dialler = RecordKey(_expanded(shares, b"fanwise: from dialler to listener, 1", _KEY_SIZE))
    of_listener = RecordKey(_expanded(shares, b"fanwise: from listener to dialler, 1", _KEY_SIZE))
    return (of_dialler, of_listener) if side == "dialler" else (of_listener, of_dialler)


def _expanded(secret: bytes, purpose: bytes, size: int) -> bytes:
    return HKDF(hashes.SHA256(), length=size, salt=None, info=purpose).derive(secret)
