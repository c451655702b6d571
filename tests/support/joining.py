"""Processes of `fanwise join` on this machine, and an objective that notes what was acknowledged.

with joining(address, secret_file, "alpha") as host:       or joining(..., inside=PlayedHost) in a network namespace
    host.process.kill()
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from networks import PlayedHost

import fanwise
from fanwise import Pool
from fanwise.links.shared_secret import write_secret
from fanwise.testing import within
from fanwise.tune import load_checkpoint, report, trial_id

EPOCHS = 8
_SOURCES = Path(fanwise.__file__).parents[1]


@dataclass
class JoiningHost:
    """A process of `fanwise join`, and the file of its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text()

    def status(self) -> int:
        """Block until the process has ended. Return its exit status."""
        return self.process.wait(timeout=60)


def start_joining(
    address: str,
    secret_file: Path,
    name: str,
    *,
    workers: int = 1,
    inside: PlayedHost | None = None,
    environment: Mapping[str, str] | None = None,
) -> JoiningHost:
    log = secret_file.with_name(f"{name}.log")
    command = ["ip", "netns", "exec", inside.name] if inside else []
    command += [sys.executable, "-m", "fanwise", "join", address, "--secret-file", str(secret_file)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--workers", str(workers), "--name", name],
            env={**os.environ, "PYTHONPATH": str(_SOURCES), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return JoiningHost(name, process, log)


@contextlib.contextmanager
def joining(address: str, secret_file: Path, name: str = "alpha", **options: object) -> Iterator[JoiningHost]:
    """Start `fanwise join` with the options of `start_joining`. Kill it at the end."""
    host = start_joining(address, secret_file, name, **options)  # type: ignore[arg-type]
    try:
        yield host
    finally:
        host.process.kill()
        host.process.wait()


def new_secret_file(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    write_secret(folder / "secret")
    return folder / "secret"


def address_of(pool: Pool) -> str:
    """Return the address where the pool listens, after its first use."""
    engine = pool._cluster_engine
    assert engine is not None
    match = re.search(r"listening at (\S+) ", engine.description)
    assert match is not None
    return match[1]


def host_names(pool: Pool) -> list[str]:
    engine = pool._cluster_engine
    assert engine is not None
    return sorted(host.hostname for host in engine.hosts)


def train(folder: str, pause_s: float) -> None:
    """Continue from the checkpoint. Note where each attempt begins, and each report that was acknowledged."""
    path = load_checkpoint()
    reached = 0 if path is None else int((path / "epoch").read_text())
    notes = os.open(f"{folder}/{trial_id()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(notes, b"from %d in %d\n" % (reached, os.getpid()))
    for epoch in range(reached + 1, EPOCHS + 1):
        Event().wait(pause_s)
        report(loss=1.0 / epoch, epoch=epoch, checkpoint=lambda at, epoch=epoch: (at / "epoch").write_text(str(epoch)))
        os.write(notes, b"acknowledged %d\n" % epoch)


def notes_in(folder: Path) -> dict[int, list[list[str]]]:
    """Return the notes of each trial as words. The last line may be incomplete after a kill."""
    files = {int(path.name): path.read_text() for path in folder.iterdir() if path.name.isdecimal()}
    return {trial: [line.split() for line in text.split("\n")[:-1]] for trial, text in files.items()}


def num_notes(folder: Path) -> int:
    return sum(map(len, notes_in(folder).values()))


def check_notes(folder: Path) -> int:
    """Check that no attempt repeats an acknowledged report, and that none runs. Return the number of attempts."""
    num_attempts = 0
    for trial, lines in notes_in(folder).items():
        acknowledged = 0
        for kind, number, *rest in lines:
            if kind == "from":
                assert int(number) >= acknowledged, f"trial {trial} repeats acknowledged reports: {lines}"
                process = Path(f"/proc/{int(rest[1])}")
                within(30, lambda process=process: not process.exists(), f"{process} has ended")  # type: ignore[misc]
                num_attempts += 1
            else:
                assert int(number) > acknowledged, f"report {number} of trial {trial} was acknowledged twice: {lines}"
            acknowledged = int(number)
        assert acknowledged == EPOCHS, f"trial {trial} has not completed: {lines}"
    return num_attempts
