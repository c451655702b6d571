"""Start processes like a launcher. Each calls functions of programs.py, one after another.

    GUEST_SIZE processes --GUEST_PROGRAMS--> GUEST_OUT/<rank>: a dict of the results or errors of the functions, by name
    one process alone    --GUEST_ALONE-----> GUEST_OUT/alone

Modules are imported before the first process is forked. The processes connect to a store of this process, as with
torchrun's agent. With GUEST_JOINED they initialize torch.distributed from a file before the functions are called.
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
    # Any: torch does not mark TCPStore as exported
    store: Any = None if IS_JOINED else distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    pids = []
    for rank in range(SIZE):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(rank)}
        if store is not None:
            variables |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
        pids.append(start(str(rank), variables, "GUEST_PROGRAMS"))
    for pid in pids:
        if ONE_HANGS and pid != pids[0]:  # like a launcher after the first process has ended
            os.kill(pid, signal.SIGKILL)
        wait(pid)


def start(name: str, variables: dict[str, str], programs: str) -> int:
    """Fork a process that calls its functions and exits."""
    pid = os.fork()
    if pid == 0:
        ENVIRONMENT.update(variables)
        if variables and IS_JOINED:
            path = f"file://{OUT / 'store'}"
            distributed.init_process_group("gloo", init_method=path, rank=int(variables["RANK"]), world_size=SIZE)
        work(name, int(variables.get("RANK", "0")), ENVIRONMENT[programs].split(","))
        os._exit(0)
    return pid


def wait(pid: int) -> None:
    os.waitpid(pid, 0)


def work(name: str, rank: int, names: list[str]) -> None:
    programs, results = load_programs(), {}
    for program in filter(None, names):
        try:
            results[program] = picklable(getattr(programs, program)(rank))
        except BaseException as error:
            results[program] = picklable(error)
        (OUT / name).write_bytes(pickle.dumps(results))


def picklable(result: Any) -> Any:  # Any: as the function returned
    """Return an error as (type, text, notes), because its traceback cannot be pickled."""
    if isinstance(result, BaseException):
        return type(result).__name__, str(result), getattr(result, "__notes__", [])
    return result


def load_programs() -> ModuleType:
    """Import programs.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("programs", Path(__file__).with_name("programs.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
