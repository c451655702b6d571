#!/usr/bin/env python3
"""Run torch's own RPC tests, as the torch wheel ships them, against torch or against a package in its place.

    python run.py --impl fanwise.rpc --groups generic,tensorpipe,faulty --tags core,compat --jobs 2

Exit status: 0 when all core tests pass, 1 when one fails, 2 when a test module cannot be imported. See README.md.
"""

import argparse
import collections
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import suite_report
import suite_rules
from suite_worker import Result, Worker

_HERE = Path(__file__).resolve().parent
_SHOWN = ("replaced", "facades", "not_replaced", "missing", "unscripted", "no_fault_injection", "no_backend_type")


@dataclass(frozen=True, slots=True)
class Test:
    """One test, and what the rules say of it."""

    id: str
    group: str
    verdict: str
    why: str


@dataclass(slots=True)
class Part:
    """Tests that may share processes, what these load, and a worker that has loaded it."""

    environment: dict[str, str]
    first: Worker
    tests: list[Test]


class Run:
    """All parts; their results by test."""

    def __init__(self, options: argparse.Namespace, log: IO[str]) -> None:
        self.results: dict[str, Result] = {}
        self.info: dict[str, Any] = {}  # Any: for people
        self.num_import_errors = 0
        self._options = options
        self._log = log
        self._lock = threading.Lock()
        self.parts = [self._part(groups) for groups in _groups(options.groups.split(","))]
        self._total = sum(len(part.tests) for part in self.parts)

    def _part(self, groups: list[str]) -> Part:
        environment = {**_environment(self._options), "RPC_SUITE_GROUPS": ",".join(groups)}
        first = Worker(environment, self._log)
        hello = first.read()
        if hello is None:
            sys.exit("the worker did not start; see workers.log in --logdir")
        self.info = self.info or hello["info"]
        for module, error in hello["import_errors"].items():
            print(f"  IMPORT ERROR {module}: {error}   (none of its tests can run)")
            self.num_import_errors += 1
        return Part(environment, first, list(_chosen(hello["ids"], self._options)))

    def go(self) -> None:
        """Run all tests, `jobs` at a time, and those that fail once more, alone."""
        for part in self.parts:
            tests: queue.SimpleQueue[Test] = queue.SimpleQueue()
            for test in part.tests:
                tests.put(test)
            count = max(1, min(self._options.jobs, len(part.tests)))
            workers = [part.first, *(self._new_worker(part) for _ in range(count - 1))]
            lanes = [threading.Thread(target=self._lane, args=(part, worker, tests)) for worker in workers]
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
        for _ in range(self._options.retries):
            for part in self.parts:
                self._again(part)

    def _new_worker(self, part: Part) -> Worker:
        worker = Worker(part.environment, self._log)
        worker.read()
        return worker

    def _lane(self, part: Part, worker: Worker, tests: "queue.SimpleQueue[Test]") -> None:
        while True:
            try:
                test = tests.get_nowait()
            except queue.Empty:
                break
            result = worker.run(test.id)
            if result is None:
                result = {"id": test.id, "status": "fail", "s": 0, "msg": "worker process died"}
                worker.close()
                worker = self._new_worker(part)
            self._take(test, result)
        worker.close()

    def _take(self, test: Test, result: Result) -> None:
        result.update(group=test.group, verdict=test.verdict, why=test.why)
        with self._lock:
            self.results[test.id] = result
            flag = "  <<<" if suite_report.is_bad(result) else ""
            count = f"[{len(self.results):3d}/{self._total}]"
            print(f"{count} {result['status']:7s} {result['s']:6.1f}s {test.id}{flag}", flush=True)

    def _again(self, part: Part) -> None:
        failed = [self.results[test.id] for test in part.tests if suite_report.is_bad(self.results[test.id])]
        if not failed:
            return
        worker = self._new_worker(part)
        for result in failed:
            now = worker.run(result["id"])
            if now is not None and now["status"] == "pass":
                result.update(status="pass", flaky=True, first_msg=result["msg"][-500:], msg="")
                print(f"passed when run again: {result['id']}")
        worker.close()


def _groups(wanted: list[str]) -> Iterator[list[str]]:
    # Registering the backend with faults changes the enum BackendType for the whole process, which other tests look at.
    with_faults = [group for group in wanted if group.startswith("faulty")]
    yield from filter(None, ([group for group in wanted if group not in with_faults], with_faults))


def _chosen(ids: list[tuple[str, str]], options: argparse.Namespace) -> Iterator[Test]:
    seen: collections.Counter[str] = collections.Counter()
    for group, test_id in ids:
        verdict, why = suite_rules.classify(group, test_id)
        if options.match and not re.search(options.match, test_id):
            continue
        if options.tags and verdict not in options.tags.split(","):
            continue
        class_name = test_id.split(".")[0]
        if seen[class_name] % options.sample == 0:
            yield Test(test_id, group, verdict, why)
        seen[class_name] += 1


def _environment(options: argparse.Namespace) -> dict[str, str]:
    path = [str(_HERE), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "RPC_SUITE_IMPL": options.impl,
        "RPC_SUITE_START": options.start,
        "RPC_SUITE_BACKEND": options.backend,
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(options.timeout),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    if "jit" in options.groups:
        environment.setdefault("RPC_SUITE_JIT", "1")
    if options.logdir:
        environment["RPC_SUITE_LOGDIR"] = os.path.abspath(options.logdir)
    return environment


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--impl", default="torch", help="'torch', or the package in the place of torch.distributed.rpc")
    add("--backend", default="", help="BackendType member to use (default: the package's own)")
    add("--start", default="forkserver", choices=["forkserver", "spawn", "fork"])
    add("--groups", default="generic,jit,tensorpipe,faulty,faulty-jit")
    add("--tags", default="", help="only tests with these verdicts: core,compat,exclude (comma)")
    add("--match", default="", help="regex on Class.test")
    add("--sample", type=int, default=1, help="only every N-th test of each class")
    add("--jobs", type=int, default=2)
    add("--timeout", type=int, default=60, help="seconds per test")
    add("--retries", type=int, default=1, help="run failing tests again, alone, this often; they count as flaky")
    add("--list", action="store_true", help="print the tests with their verdicts, and end")
    add("--json", default="", help="write the results to this file")
    add("--logdir", default="", help="a folder for what the processes of the tests print")
    add("--compare", default="", help="results of an earlier run; prints the differences")
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for."""
    options = _options()
    began_s = time.monotonic()
    if options.logdir:
        os.makedirs(options.logdir, exist_ok=True)
    with open(os.path.join(options.logdir, "workers.log") if options.logdir else os.devnull, "w") as log:
        run = Run(options, log)
        if options.list:
            return _list(run)
        print(f"impl={options.impl} start={options.start} jobs={options.jobs} timeout={options.timeout} s")
        for key in _SHOWN:
            if run.info.get(key):
                print(f"  {key}: {run.info[key]}")
        run.go()
    wall_s = time.monotonic() - began_s
    results = list(run.results.values())
    suite_report.show(results, wall_s)
    if options.json:
        about = {"impl": options.impl, "start": options.start, "jobs": options.jobs, "info": run.info}
        suite_report.write(Path(options.json), about, results, wall_s)
    if options.compare:
        suite_report.compare(Path(options.compare), results)
    if run.num_import_errors or not results:
        return 2
    return int(any(result["verdict"] == "core" and suite_report.is_bad(result) for result in results))


def _list(run: Run) -> int:
    tests = [test for part in run.parts for test in part.tests]
    for test in tests:
        print(f"{test.verdict:8s} {test.group:11s} {test.id}  {test.why}")
    print(dict(collections.Counter(test.verdict for test in tests)), len(tests))
    for part in run.parts:
        part.first.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
