"""Processes that take a lock file on an entrance and die with it: what a coordinator leaves behind that was killed.

    die_holding(path, (4711, 123), ...)           # with these processes noted as those of its group
    [sys.executable, "-c", WITH_LOCK_FILES + "..."]   # one that does something else

Each is a fresh interpreter, which loads `fanwise.rpc.rendezvous.lock_files` without what is in `fanwise.rpc` itself:
that would load torch.
"""

import json
import subprocess
import sys
from pathlib import Path

from fanwise.rpc.rendezvous import lock_files

# The beginning of a program that has `lock_files`.
WITH_LOCK_FILES = f"""
import importlib, json, os, subprocess, sys, types
from pathlib import Path
sys.path[:] = {sys.path!r}
package = sys.modules["fanwise.rpc"] = types.ModuleType("fanwise.rpc")
package.__path__ = [{str(Path(lock_files.__file__).parents[1])!r}]
lock_files = importlib.import_module("fanwise.rpc.rendezvous.lock_files")
assert "torch" not in sys.modules
"""
_HOLD_AND_DIE = """
lock = lock_files.try_lock(Path(sys.argv[1]), 1)
lock.note([tuple(member) for member in json.loads(sys.argv[2])])
os._exit(0)
"""


def die_holding(path: Path, *members: tuple[int, int]) -> None:
    """A process takes the lock file, notes `members` (the pid and start of each), and is dead when this returns."""
    subprocess.run([sys.executable, "-c", WITH_LOCK_FILES + _HOLD_AND_DIE, path, json.dumps(members)], check=True)
