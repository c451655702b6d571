"""The shared secret: generated ones are accepted, weak or exposed ones are refused with a remedy."""

import hashlib
import os
import re
import stat
from pathlib import Path

import pytest

from fanwise.base.errors import SecretError
from fanwise.links.shared_secret import check_secret, new_secret, read_secret, write_secret


def test_new_secrets_are_taken_and_never_the_same() -> None:
    made = {new_secret() for _ in range(300)}
    assert len(made) == 300
    for secret in made:
        assert re.fullmatch(r"fanwise1-[A-Za-z0-9_-]{48}", secret)
        assert check_secret(secret) == check_secret(f" {secret}\n") == secret


def sum_of(text: str) -> str:
    """Return a word with a valid checksum, as a user might construct it."""
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "thought_up",
    [
        "",
        "hunter2",
        "correct horse battery staple",
        "my-cluster-secret-do-not-share-2025",
        "Summer2024!Winter2025?Spring",
        "a" * 64,
        sum_of("password"),
        "fanwise-1-secret",
        "U2FsdGVkX1-6qY0sZ3nB7rT4vW9xK2mP5cJ8hL1dQ0g",  # drawn, and yet nobody can know
    ],
)
def test_what_was_not_drawn_here_is_refused_and_not_shown(thought_up: str) -> None:
    with pytest.raises(SecretError, match="the secret in X was not created by `fanwise secret`") as refused:
        check_secret(thought_up, "the secret in X")
    assert "fanwise explain secret" in str(refused.value)
    assert not thought_up or thought_up not in str(refused.value)


def test_what_was_cut_short_or_changed_is_refused() -> None:
    secret = new_secret()
    other = "A" if secret[20] != "A" else "B"
    for wrong in (secret[:-1], secret[:40], secret + "A", secret[:20] + other + secret[21:], "fanwise1-" + "A" * 48):
        with pytest.raises(SecretError, match=r"is damaged.*It has \d+"):
            check_secret(wrong)


def test_the_environment_gives_the_secret_or_its_file_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    of_file, variables = path.read_text().strip(), new_secret()
    assert read_secret({}) is None and read_secret({"FANWISE_SECRET": "", "FANWISE_SECRET_FILE": ""}) is None
    assert read_secret({"FANWISE_SECRET_FILE": str(path)}) == of_file
    assert read_secret({"FANWISE_SECRET": variables, "FANWISE_SECRET_FILE": str(path)}) == variables
    with pytest.raises(SecretError, match="the secret in FANWISE_SECRET was not created"):
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


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    owner = path.stat().st_uid
    if owner == 0:
        os.chown(path, 4711, -1)  # root can: the real thing
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(SecretError, match=r"belongs to user \d+, and this process runs as user \d+"):
        read_secret({"FANWISE_SECRET_FILE": str(path)})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "was not created by"),
        (b"short\n", "was not created by"),
        (bytes(range(200, 256)), "not plain text"),
        (b"x" * 5000, "was not created by"),
    ],
)
def test_a_file_that_holds_no_secret_is_named(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SecretError, match=f"{path}.*{text}"):
        read_secret({"FANWISE_SECRET_FILE": str(path)})


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(SecretError, match=rf"{path} is no regular file: .*\n.*FANWISE_SECRET"):
            read_secret({"FANWISE_SECRET_FILE": str(path)})


def test_a_missing_file_is_an_error_and_not_no_secret(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"the file of the secret cannot be read: .*No such file.*\nMake one"):
        read_secret({"FANWISE_SECRET_FILE": str(tmp_path / "none")})
