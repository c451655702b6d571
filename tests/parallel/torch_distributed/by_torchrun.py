"""Run by a test: torchrun starts two processes, and a training runs in their places, with all that torchrun told them.

    torchrun --starts--> worker: its environment --GUEST_OUT/told<rank>--> member, which trains --> GUEST_OUT/said<rank>
                         waits, and ends <-------GUEST_OUT/ends<rank>----- ends

A member is forked from this process, which has loaded what it uses: each worker would need seconds for that. A worker
is a bare interpreter, and lives as long as its member.
"""

import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import torch
from torch.distributed.run import main as torchrun

OUT = Path(os.environ["GUEST_OUT"])
SIZE = 2
WORKER = """
import json, os, sys
rank = os.environ["RANK"]
with open("told" + rank, "w") as file:
    json.dump(dict(os.environ), file)
with open("ends" + rank) as pipe:  # opens when the other end does
    pipe.read()
sys.exit(not os.path.exists("said" + rank))
"""


def main() -> None:
    """Raises SystemExit, as torchrun does, when a process has failed."""
    torch.set_num_threads(1)
    importlib.import_module("fanwise.parallel.run")  # before the members are forked, as torch is
    (OUT / "worker.py").write_text(WORKER)
    for rank in range(SIZE):
        os.mkfifo(OUT / f"ends{rank}")
    members = [start(rank) for rank in range(SIZE)]
    try:
        here = ["--standalone", "--local-addr=127.0.0.1"]  # it would ask for the name of this machine else
        torchrun([*here, f"--nproc-per-node={SIZE}", f"--log-dir={OUT / 'logs'}", str(OUT / "worker.py")])
    finally:
        for pid in members:
            os.kill(pid, signal.SIGKILL)  # they have ended, unless torchrun has failed
            os.waitpid(pid, 0)


def start(rank: int) -> int:
    """A member."""
    pid = os.fork()
    if pid == 0:
        try:
            train(rank)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    return pid


def train(rank: int) -> None:
    with open(OUT / f"ends{rank}", "w"):
        os.environ.clear()
        os.environ.update(json.loads((OUT / f"told{rank}").read_text()))
        programs = runpy.run_path(str(Path(__file__).with_name("programs.py")))
        said = programs["fanwise"].run(programs["training"], shards=programs["SHARDS"])
        (OUT / f"said{rank}").write_text(repr(said))


if __name__ == "__main__":
    main()
