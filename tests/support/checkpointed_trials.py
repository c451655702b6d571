"""Trials that continue from their checkpoints and record their attempts in files, and checks of these records.

A record has a line "from EPOCH in PID on ADDRESS" for each attempt, and "acknowledged EPOCH" for each report whose
answer has arrived. No attempt may begin before an acknowledged epoch.
"""

import os
from pathlib import Path
from threading import Event

import psutil

from fanwise.testing import within
from fanwise.tune import load_checkpoint, report, trial_id


def count_epochs(folder: str, epochs: int, epoch_s: float, network: str = "127.") -> None:
    """Count from the last checkpoint to `epochs`. `network`: beginning of the address in the record."""
    checkpoint = load_checkpoint()
    reached = 0 if checkpoint is None else int((checkpoint / "epoch").read_text())
    addresses = [address.address for interface in psutil.net_if_addrs().values() for address in interface]
    address = next(address for address in addresses if address.startswith(network))
    record = os.open(f"{folder}/{trial_id()}.record", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(record, f"from {reached} in {os.getpid()} on {address}\n".encode())
    for epoch in range(reached + 1, epochs + 1):
        Event().wait(epoch_s)
        report(loss=1.0 / epoch, epoch=epoch, checkpoint=lambda at, epoch=epoch: (at / "epoch").write_text(str(epoch)))
        os.write(record, b"acknowledged %d\n" % epoch)


def records(folder: Path) -> dict[int, list[list[str]]]:
    """Return the words of all complete lines by trial."""
    lines = {int(path.stem): path.read_text().splitlines(keepends=True) for path in folder.glob("*.record")}
    return {trial: [line.split() for line in texts if line[-1] == "\n"] for trial, texts in lines.items()}


def num_lines(folder: Path) -> int:
    return sum(map(len, records(folder).values()))


def attempts(folder: Path, address: str = "") -> list[int]:
    """Return the pids of all attempts, or those at an address."""
    lines = [line for trial_lines in records(folder).values() for line in trial_lines if line[0] == "from"]
    return [int(line[3]) for line in lines if line[5].startswith(address)]


def check_records(folder: Path, *, trials: int, epochs: int) -> int:
    """Check all records and that no attempt is running. Return the number of attempts that began at a checkpoint."""
    assert sorted(records(folder)) == list(range(trials))
    num_continued = 0
    for trial, lines in records(folder).items():
        acknowledged = 0
        for kind, epoch, *_ in lines:
            assert kind == "acknowledged" or int(epoch) >= acknowledged, f"trial {trial} went back: {lines}"
            num_continued += kind == "from" and int(epoch) > 0
            acknowledged = max(acknowledged, int(epoch))
        assert acknowledged == epochs, f"trial {trial} is incomplete: {lines}"
    within(30, lambda: not any(map(psutil.pid_exists, attempts(folder))), "all attempts have ended")
    return num_continued
