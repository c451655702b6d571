"""The cluster's shared secret: making it, reading it, and refusing what is too weak to be one.

    fanwise secret --file ~/.fanwise-secret        on one host; copy the file to the others
    export FANWISE_SECRET_FILE=~/.fanwise-secret   or FANWISE_SECRET, which is looked at first

Whoever holds it may join the cluster and run code in all of its processes. Strangers can get signatures that come from
it, and try guesses against them as long as they like: so it has at least 128 bits, drawn by a machine.
Knows nothing of certificates and sockets.
"""

import math
import os
import secrets
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

from ..base.errors import SecretError

VARIABLE = "FANWISE_SECRET"
FILE_VARIABLE = "FANWISE_SECRET_FILE"

_BITS_MIN = 128
# What is left of those when repetitions are taken out; chance alone makes a few.
_BITS_LEFT_MIN = 96
_NEW_BYTES = 32
_FILE_BYTES_MAX = 4096
_REMEDY = "Make one with `fanwise secret`, and give the same one to every process of the cluster."


def new_secret() -> str:
    """A fresh secret of 256 bits, on one line of 43 characters."""
    return secrets.token_urlsafe(_NEW_BYTES)


def write_secret(path: Path) -> None:
    """Write a fresh secret to a new file that only this user may read. Raises `FileExistsError` when there is one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(new_secret() + "\n")


def read_secret(environ: Mapping[str, str]) -> str | None:
    """The secret that the environment gives or points at; None when it does neither.

    Raises `SecretError` when it is too weak, or its file cannot be read or can be read by others.
    """
    if environ.get(VARIABLE):
        return check_secret(environ[VARIABLE], f"the secret in {VARIABLE}")
    if environ.get(FILE_VARIABLE):
        path = Path(environ[FILE_VARIABLE]).expanduser()
        return check_secret(_read(path), f"the secret in {path}")
    return None


def check_secret(text: str, what: str = "the secret") -> str:
    """`text` without the white space around it. Raises `SecretError` when it has less than 128 bits.

    Args:
        what: how to call it in the message, which never shows the secret itself.
    """
    text = text.strip()
    bits = len(text) * math.log2(max(2, _alphabet_size(text)))
    if bits < _BITS_MIN:
        raise SecretError(
            f"{what} is too short: {len(text)} characters of its kind have at most {bits:.0f} bits, "
            f"{_BITS_MIN} are needed.\n{_REMEDY}"
        )
    if bits * min(1.0, len(_compressed(text)) / len(text)) < _BITS_LEFT_MIN:
        raise SecretError(f"{what} repeats itself: it can be guessed.\n{_REMEDY}")
    return text


def _alphabet_size(text: str) -> int:
    """How many characters there may be in a text of this kind."""
    kinds = ["0123456789", "0123456789abcdef", "0123456789ABCDEF", "abcdefghijklmnopqrstuvwxyz"]
    for kind in [*kinds, kinds[-1].upper()]:
        if set(text) <= set(kind):
            return len(kind)
    return 64


def _compressed(text: str) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeeze.compress(text.encode()) + squeeze.flush()


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecretError(f"{FILE_VARIABLE} names a file that cannot be read: {error}.\n{_REMEDY}") from error
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise SecretError(
            f"{path} may be read or written by others (mode {stat.S_IMODE(mode):04o}), so the secret in it is none.\n"
            f"Make a new one with `fanwise secret --file`; if nobody else uses this machine: chmod 600 {path}."
        )
    try:
        return data.decode("ascii") if len(data) <= _FILE_BYTES_MAX else ""
    except UnicodeDecodeError:
        raise SecretError(f"{path} holds no secret: it is not plain text.\n{_REMEDY}") from None
