"""A process that runs tests, one after another, and the driver's end of it.

    driver   --"Class.test" on stdin-->  worker
    driver   <--a line of JSON on a pipe--  worker: first what it loaded, then one result for each test

A test may end its process, or print anything: results have a pipe of their own.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
import unittest
from typing import IO, Any

_OUT = "RPC_SUITE_OUTFD"
_MESSAGE_CHARS = 3000
_GOODBYE_S = 10

Result = dict[str, Any]  # Any: text and numbers


class Worker:
    """The driver's end. `environment` says what the worker loads; `log` takes what it prints."""

    def __init__(self, environment: dict[str, str], log: IO[str]) -> None:
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            env={**environment, _OUT: str(write)},
            text=True,
            start_new_session=True,
        )
        os.close(write)
        self._results = os.fdopen(read)

    def read(self) -> Result | None:
        """The next line; None when the worker has died. Blocks."""
        line = self._results.readline()
        return json.loads(line) if line else None

    def run(self, test_id: str) -> Result | None:
        """Run a test and wait for its result; None when the worker has died."""
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(test_id + "\n")
            self._process.stdin.flush()
        return self.read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.close()
            self._process.wait(_GOODBYE_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._results.close()


def main() -> None:
    """The worker's end."""
    multiprocessing.set_forkserver_preload(["suite_cases"])
    import suite_cases

    gc.freeze()  # else each process that is forked here for a test goes through all of this, and so copies it
    with os.fdopen(int(os.environ[_OUT]), "w", buffering=1) as out:
        hello = {
            "ids": suite_cases.all_ids(),
            "import_errors": suite_cases.IMPORT_ERRORS,
            "info": {
                key: sorted(value) if isinstance(value, set) else value for key, value in suite_cases.INFO.items()
            },
        }
        out.write(json.dumps(hello) + "\n")
        for line in sys.stdin:
            test_id = line.strip()
            if not test_id:
                break
            out.write(json.dumps(_run(suite_cases.CASES, test_id)) + "\n")


def _run(cases: dict[str, type[unittest.TestCase]], test_id: str) -> Result:
    class_name, test_name = test_id.split(".")
    began_s = time.monotonic()
    try:
        result = unittest.TestResult()
        cases[class_name](test_name).run(result)
        status, message = _outcome(result)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        status, message = "fail", repr(error)
    took_s = round(time.monotonic() - began_s, 2)
    return {"id": test_id, "status": status, "s": took_s, "msg": message[-_MESSAGE_CHARS:]}


def _outcome(result: unittest.TestResult) -> tuple[str, str]:
    bad = result.errors + result.failures
    if bad:
        message = bad[0][1]
        return "timeout" if "terminated or timed out" in message else "fail", message
    if result.skipped:
        return "skip", result.skipped[0][1]
    return "pass", ""


if __name__ == "__main__":
    main()
