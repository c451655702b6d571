"""Where a searcher thinks: what becomes of its thread when the program ends."""

import subprocess
import sys

PROGRAM = """
import os, threading, time
from fanwise.tune import Ask, Searcher, Space, uniform
from fanwise.tune.decisions.orders import Suggest
from fanwise.tune.suggesting import InThread

begun = threading.Event()

class Thinks(Searcher):
    def suggest(self, ask):
        begun.set()
        time.sleep(0.5)
        os.write(1, b"thought")
        return {"x": 0.5}
    def observe(self, observation): ...

thread = InThread(Thinks(), lambda answer: None, time.monotonic)
thread.ask(Suggest(0, Ask(0, 0, Space({"x": uniform(0, 1)}))), now_s=0.0, seen=0)
begun.wait()
"""


def test_a_program_that_ends_lets_the_searcher_think_to_its_end() -> None:
    """A thread that is in C++ when Python is taken down would end the process by SIGABRT."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "thought", "")
