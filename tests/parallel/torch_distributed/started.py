"""Run by a test: starts processes as a launcher does, each of which calls functions of programs.py, one after another.

    GUEST_SIZE processes --GUEST_PROGRAMS--> GUEST_OUT/<rank>: a dict, by name, of what each returned or raised
    one process alone    --GUEST_ALONE-----> GUEST_OUT/alone

All that they use is loaded before the first of them is forked. They find each other at an address that this process
serves, as torchrun's agent does; with GUEST_JOINED they have initialised torch.distributed by a file before they begin.
"""

import importlib
import importlib.util
import os
import pickle
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import distributed

ENVIRONMENT = os.environ
OUT = Path(ENVIRONMENT["GUEST_OUT"])
SIZE = int(ENVIRONMENT["GUEST_SIZE"])
IS_JOINED = "GUEST_JOINED" in ENVIRONMENT
ONE_HANGS = ENVIRONMENT["GUEST_PROGRAMS"] == "hang_of_the_last"


def main() -> None:
    torch.set_num_threads(1)
    importlib.import_module("fanwise.parallel.run")  # each process would need a third of a second for it
    wait(start("alone", {}, "GUEST_ALONE"))
    store = None if IS_JOINED else served()
    everyone = []
    for rank in range(SIZE):
        told = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(rank)}
        if store is not None:
            told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        everyone.append(start(str(rank), told, "GUEST_PROGRAMS"))
    first, *others = everyone
    wait(first)
    for pid in others:
        if ONE_HANGS:  # as a launcher does, when the first one has ended
            os.kill(pid, signal.SIGKILL)
        wait(pid)


def served() -> Any:  # Any: TCPStore, which torch does not mark as exported
    """Where the processes find each other, as torchrun's agent serves it."""
    return distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def start(name: str, told: dict[str, str], programs: str) -> int:
    """A process that does its programs and ends."""
    pid = os.fork()
    if pid == 0:
        ENVIRONMENT.update(told)
        if told and IS_JOINED:
            path = f"file://{OUT / 'store'}"
            distributed.init_process_group("gloo", init_method=path, rank=int(told["RANK"]), world_size=SIZE)
        work(name, int(told.get("RANK", "0")), ENVIRONMENT[programs].split(","))
        os._exit(0)
    return pid


def wait(pid: int) -> None:
    os.waitpid(pid, 0)


def work(name: str, rank: int, names: list[str]) -> None:
    programs, said = loaded(), {}
    for each in filter(None, names):
        try:
            said[each] = plain(getattr(programs, each)(rank))
        except BaseException as error:
            said[each] = plain(error)
        (OUT / name).write_bytes(pickle.dumps(said))


def plain(said: Any) -> Any:  # Any: as the program returned
    """An error as (type, text, notes): its traceback cannot travel."""
    if isinstance(said, BaseException):
        return type(said).__name__, str(said), getattr(said, "__notes__", [])
    return said


def loaded() -> ModuleType:
    """programs.py, which is part of no package."""
    spec = importlib.util.spec_from_file_location("programs", Path(__file__).with_name("programs.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
