"""The shared secret: what is made is taken, what is weak or open to others is refused with what to do."""

import re
import secrets
import stat
from pathlib import Path

import pytest

from fanwise.base.errors import SecretError
from fanwise.links.shared_secret import check_secret, new_secret, read_secret, write_secret


def test_new_secrets_are_strong_and_never_the_same() -> None:
    made = {new_secret() for _ in range(300)}
    assert len(made) == 300
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", secret) and check_secret(secret) == secret for secret in made)


@pytest.mark.parametrize("make", [lambda: secrets.token_hex(16), lambda: secrets.token_urlsafe(16)])
def test_128_bits_drawn_elsewhere_are_enough(make: object) -> None:
    assert callable(make)
    for _ in range(300):
        secret = make()
        assert check_secret(f" {secret}\n") == secret


@pytest.mark.parametrize(
    ("weak", "text"),
    [
        ("", "0 characters of its kind have at most 0 bits, 128 are needed"),
        ("hunter2", "7 characters of its kind have at most 42 bits"),
        ("123456789012345678901234567890", "30 characters of its kind have at most 100 bits"),
        ("c0ffee5eed" * 3, "30 characters of its kind have at most 120 bits"),
        ("correcthorsebatterystaple", "25 characters of its kind have at most 118 bits"),
        ("a" * 100, "repeats itself"),
        ("0123456789abcdef" * 4, "repeats itself"),
        ("Password!" * 20, "repeats itself"),
    ],
)
def test_what_can_be_guessed_is_refused_and_not_shown(weak: str, text: str) -> None:
    with pytest.raises(SecretError, match=text) as refused:
        check_secret(weak, "the secret in X")
    assert str(refused.value).startswith("the secret in X ")
    assert "`fanwise secret`" in str(refused.value) and "docs/errors.md#secret" in str(refused.value)
    assert not weak or weak not in str(refused.value)


def test_the_environment_gives_the_secret_or_its_file_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    of_file, given = path.read_text().strip(), new_secret()
    assert read_secret({}) is None and read_secret({"FANWISE_SECRET": "", "FANWISE_SECRET_FILE": ""}) is None
    assert read_secret({"FANWISE_SECRET_FILE": str(path)}) == of_file
    assert read_secret({"FANWISE_SECRET": given, "FANWISE_SECRET_FILE": str(path)}) == given
    with pytest.raises(SecretError, match="the secret in FANWISE_SECRET is too short"):
        read_secret({"FANWISE_SECRET": "short"})


def test_a_new_file_is_for_this_user_only_and_an_old_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    with pytest.raises(FileExistsError):
        write_secret(path)
    assert path.read_text() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    path.chmod(mode)
    with pytest.raises(SecretError, match=rf"may be read or written by others \(mode {mode:04o}\)[^\n]*\n.*chmod 600"):
        read_secret({"FANWISE_SECRET_FILE": str(path)})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "too short: 0 characters"),
        (b"short\n", "too short: 5 characters"),
        (bytes(range(200, 256)), "not plain text"),
        (b"x" * 5000, "too short: 0 characters"),
    ],
)
def test_a_file_that_holds_no_secret_is_named(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SecretError, match=f"{path}.*{text}"):
        read_secret({"FANWISE_SECRET_FILE": str(path)})


def test_a_missing_file_is_an_error_and_not_no_secret(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"names a file that cannot be read: .*No such file.*\nMake one"):
        read_secret({"FANWISE_SECRET_FILE": str(tmp_path / "none")})
