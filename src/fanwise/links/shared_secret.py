"""The cluster's shared secret: making it, reading it, and refusing what is too weak to be one.

    fanwise secret --file ~/.fanwise-secret        on one host; copy the file to the others
    export FANWISE_SECRET_FILE=~/.fanwise-secret   or FANWISE_SECRET, which is looked at first

Whoever holds it may join the cluster and run code in all of its processes. Who is dialled by one of them gets a
signature that comes from it, and can try guesses against that as long as he likes. So a secret is drawn by a machine,
and only one that was drawn here is taken:

    fanwise1-<48 characters>      base64url of 32 random bytes, and of the first 4 of their SHA-256

The last bytes tell a secret from what somebody has thought up, from one that was cut short and from one that was typed.
Knows nothing of certificates and sockets.
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
_DRAWN_BYTES, _SUM_BYTES = 32, 4
_FILE_BYTES_MAX = 4096
_REMEDY = "Make one with `fanwise secret`, and give the same one to every process of the cluster."


def new_secret() -> str:
    """A fresh secret of 256 bits, on one line of 57 characters."""
    drawn = secrets.token_bytes(_DRAWN_BYTES)
    return _PREFIX + base64.urlsafe_b64encode(drawn + _sum_of(drawn)).decode()


def _sum_of(drawn: bytes) -> bytes:
    return hashlib.sha256(drawn).digest()[:_SUM_BYTES]


def write_secret(path: Path) -> None:
    """Write a fresh secret to a new file that only this user may read. Raises `FileExistsError` when there is one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(new_secret() + "\n")


def read_secret(environ: Mapping[str, str]) -> str | None:
    """The secret that the environment gives or points at; None when it does neither.

    Raises `SecretError` when `fanwise secret` has not drawn it, or its file cannot be read, or others can read it.
    """
    if environ.get(VARIABLE):
        return check_secret(environ[VARIABLE], f"the secret in {VARIABLE}")
    if environ.get(FILE_VARIABLE):
        path = Path(environ[FILE_VARIABLE]).expanduser()
        return check_secret(_read(path), f"the secret in {path}")
    return None


def check_secret(text: str, what: str = "the secret") -> str:
    """`text` without the white space around it. Raises `SecretError` when it was not drawn by `fanwise secret`.

    Args:
        what: how to call it in the message, which never shows the secret itself.
    """
    text = text.strip()
    if not text.startswith(_PREFIX):
        raise SecretError(
            f"{what} was not drawn by `fanwise secret`: it does not begin with {_PREFIX!r}. What a person thinks up "
            f"can be guessed, and what another program drew cannot be told from that.\n{_REMEDY}"
        )
    try:
        data = base64.b64decode(text.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != _DRAWN_BYTES + _SUM_BYTES or data[_DRAWN_BYTES:] != _sum_of(data[:_DRAWN_BYTES]):
        raise SecretError(
            f"{what} is not as `fanwise secret` drew it, which are {len(_PREFIX) + 48} characters; here are "
            f"{len(text)}. It was cut short or changed on its way here.\nCopy it again. {_REMEDY}"
        )
    return text


def _without_waiting(path: str, flags: int) -> int:
    """To open a pipe would wait for somebody at its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read(path: Path) -> str:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            data = file.read(_FILE_BYTES_MAX + 1) if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise SecretError(f"{FILE_VARIABLE} names a file that cannot be read: {error}.\n{_REMEDY}") from error
    mode = found.st_mode
    if not stat.S_ISREG(mode):
        raise SecretError(
            f"{path} is no regular file: a pipe or a device may never say anything, and says it to one process only.\n"
            f"Write the secret to a file of mode 600, or give it in {VARIABLE}."
        )
    if os.name == "posix" and found.st_uid not in (os.geteuid(), 0):
        raise SecretError(
            f"{path} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}: who owns the file "
            f"knows the secret in it, and can change it.\n"
            f"Make a new one with `fanwise secret --file`; if that user may run code as you, use a copy of your own: "
            f"install -m 600 {path} COPY."
        )
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise SecretError(
            f"{path} may be read or written by others (mode {stat.S_IMODE(mode):04o}), so the secret in it is none.\n"
            f"Make a new one with `fanwise secret --file`; if nobody else uses this machine: chmod 600 {path}."
        )
    try:
        return data.decode("ascii") if len(data) <= _FILE_BYTES_MAX else ""
    except UnicodeDecodeError:
        raise SecretError(f"{path} holds no secret: it is not plain text.\n{_REMEDY}") from None
