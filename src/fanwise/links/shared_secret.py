"""The shared secret of a cluster: creates, reads and checks it.

    fanwise secret --file ~/.fanwise-secret        on one host; copy the file to the others
    export FANWISE_SECRET_FILE=~/.fanwise-secret   or FANWISE_SECRET, which has precedence

A process with the secret may join the cluster and run code in all other processes. A stranger that one of them dials
receives a signature that depends on the secret, and can test guesses offline. So only random secrets are accepted:

    fanwise1-<48 characters>      base64url of 32 random bytes and the first 4 bytes of their SHA-256

The checksum reveals secrets that were invented, truncated or mistyped.
"""

import base64
import binascii
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from ..base.errors import SecretError

VARIABLE = "FANWISE_SECRET"
FILE_VARIABLE = "FANWISE_SECRET_FILE"

_PREFIX = "fanwise1-"
_RANDOM_BYTES, _SUM_BYTES = 32, 4
_FILE_BYTES_MAX = 4096
_REMEDY = "Make one with `fanwise secret`, and give the same one to every process of the cluster."


def new_secret() -> str:
    """Return a new secret of 256 bits: one line of 57 characters."""
    random = secrets.token_bytes(_RANDOM_BYTES)
    return _PREFIX + base64.urlsafe_b64encode(random + _checksum(random)).decode()


def _checksum(random: bytes) -> bytes:
    return hashlib.sha256(random).digest()[:_SUM_BYTES]


def write_secret(path: Path) -> None:
    """Write a new secret to a new file that only this user may read. Raises `FileExistsError` if it exists."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(new_secret() + "\n")


def read_secret(environ: Mapping[str, str]) -> str | None:
    """Return the secret of the environment variables; None if there is none.

    Raises `SecretError` if `fanwise secret` did not create it, or its file cannot be read, or others can read it.
    """
    if environ.get(VARIABLE):
        return check_secret(environ[VARIABLE], f"the secret in {VARIABLE}")
    if environ.get(FILE_VARIABLE):
        path = Path(environ[FILE_VARIABLE]).expanduser()
        return check_secret(_read(path), f"the secret in {path}")
    return None


def check_secret(text: str, name: str = "the secret") -> str:
    """Return `text` without surrounding white space. Raises `SecretError` if `fanwise secret` did not create it.

    Args:
        name: for the message, which never contains the secret itself.
    """
    text = text.strip()
    if not text.startswith(_PREFIX):
        raise SecretError(
            f"{name} was not created by `fanwise secret`: it does not begin with {_PREFIX!r}. Invented secrets can be "
            f"guessed.\n{_REMEDY}"
        )
    try:
        data = base64.b64decode(text.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != _RANDOM_BYTES + _SUM_BYTES or data[_RANDOM_BYTES:] != _checksum(data[:_RANDOM_BYTES]):
        raise SecretError(
            f"{name} is damaged: its checksum is wrong. It has {len(text)} characters, expected {len(_PREFIX) + 48}.\n"
            f"Copy it again. {_REMEDY}"
        )
    return text


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file; opening a pipe would otherwise wait for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read(path: Path) -> str:
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            status = os.fstat(file.fileno())
            data = file.read(_FILE_BYTES_MAX + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise SecretError(f"the file of the secret cannot be read: {error}.\n{_REMEDY}") from error
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        raise SecretError(
            f"{path} is no regular file: a pipe or a device can be read by one process only, and may block.\n"
            f"Write the secret to a file of mode 600, or give it in {VARIABLE}."
        )
    if os.name == "posix" and status.st_uid not in (os.geteuid(), 0):
        raise SecretError(
            f"{path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}: the owner can "
            f"read and change the secret.\n"
            f"Make a new one with `fanwise secret --file`; if that user may run code as you, use a copy of your own: "
            f"install -m 600 {path} COPY."
        )
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise SecretError(
            f"{path} may be read or written by others (mode {stat.S_IMODE(mode):04o}), so it is not secret.\n"
            f"Make a new one with `fanwise secret --file`; if no other user has read it: chmod 600 {path}."
        )
    try:
        return data.decode("ascii") if len(data) <= _FILE_BYTES_MAX else ""
    except UnicodeDecodeError:
        raise SecretError(f"{path} holds no secret: it is not plain text.\n{_REMEDY}") from None
