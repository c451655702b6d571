"""Remote calls: fanwise.rpc beside torch.distributed.rpc in one run, and beside other libraries where they are there.

    for each round, for each measure: fanwise, torch, one after the other --JSON lines--> tables
    then the same with fanwise, fanwise in TLS, Ray, gRPC, Monarch, and with many workers that call one

All contestants of a table are alive while it is measured, each with a worker that is called, and take turns within a
second, so that a slow minute of the machine hits all of them. torch's workers use half a core each when nobody calls
them (a row says so); they are stopped (SIGSTOP) while another is measured. Each worker computes with one thread. A
number is the median of the rounds, with the least and the greatest. What the measures do is in
`peers/rpc_measures.py`. One contestant that cannot start, or fails, is left out with the reason; those with pins in
`peers/<name>.txt` run in `.bench-envs/<name>` when `trial_overhead.py` or `--install` has made it.

    python benchmarks/rpc.py [--rounds 5] [--quick] [--only NAME ...] [--tables overload ...] [--measures sync ...]
        [--install]
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measuring import finish, machine, say, spread, table
from trial_overhead import ENVIRONMENTS, PEERS, NotReady, environment

ANSWER_LIMIT_S = 300.0
START_LIMIT_S = 180.0
OBSERVERS = 8
Samples = dict[tuple[str, str], list[float]]  # (measure, figure): one a round


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program under peers/, its arguments, its environment (none: this interpreter's), whether it is stopped while
    others are measured, and the checkout that it and its `.venv` are taken from (none: this one)."""

    name: str
    program: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None
    stops: bool = False
    checkout: Path | None = None


MANY = ("--observers", str(OBSERVERS))
FANWISE = Contestant("fanwise", "rpc_group.py", ("--library", "fanwise"))
PAIRS = (FANWISE, Contestant("torch", "rpc_group.py", ("--library", "torch"), stops=True))
OTHERS = (
    FANWISE,
    Contestant("fanwise, TLS", "rpc_group.py", ("--library", "fanwise", "--tls")),
    Contestant("Ray", "rpc_ray.py", environment="ray"),
    Contestant("gRPC", "rpc_grpc.py", environment="grpc"),
    Contestant("Monarch", "rpc_monarch.py", environment="monarch"),
)
WITH_OBSERVERS = (
    Contestant("fanwise", "rpc_group.py", ("--library", "fanwise", *MANY)),
    Contestant("torch", "rpc_group.py", ("--library", "torch", *MANY), stops=True),
)

# (measure, figure, how the row is called, digits, what we want of torch / fanwise or fanwise / torch)
ROWS = (
    ("sync", "p50 us", "Python call, rpc_sync, p50, us", 0, "<= 1/3"),
    ("sync", "p99 us", "Python call, rpc_sync, p99, us", 0, "<= 1"),
    ("async_wait", "p50 us", "rpc_async(...).wait(), p50, us", 0, "<= 1/3"),
    ("async_wait", "p99 us", "rpc_async(...).wait(), p99, us", 0, "<= 1"),
    ("futures_wait_all", "p50 us", "through torch.futures.wait_all, p50, us", 0, "<= 1/3"),
    ("futures_wait_all", "p99 us", "through torch.futures.wait_all, p99, us", 0, "<= 1"),
    ("in_wait_all", "p50 us", "in a block of wait_all, p50, us", 0, "<= 1/3"),
    ("in_wait_all", "p99 us", "in a block of wait_all, p99, us", 0, "<= 1"),
    ("busy_callee", "p50 us", "callee's main thread computes, p50, us", 0, "<= 1/3"),
    ("busy_callee", "p99 us", "callee's main thread computes, p99, us", 0, "<= 1"),
    ("busy_caller", "p50 us", "a thread of the caller computes, p50, us", 0, "<= 1/3"),
    ("busy_caller", "p99 us", "a thread of the caller computes, p99, us", 0, "<= 1"),
    ("one_element_add", "p50 us", "torch.add of one element, p50, us", 0, ""),
    ("one_element_add", "p99 us", "torch.add of one element, p99, us", 0, ""),
    ("pipelined", "calls/s", "pipelined calls of one pair, a second", 0, ">= 2"),
    ("one_way_1", "ms", "1 MiB one way, all read, ms", 2, ""),
    ("one_way_64", "ms", "64 MiB one way, all read, ms", 1, "<= 1/4"),
    ("one_way_64_pages", "ms", "64 MiB one way, every page touched, ms", 1, "<= 1/4"),
    ("one_way_256", "ms", "256 MiB one way, all read, ms", 1, ""),
    ("read_alone", "ms", "reading 64 MiB alone, no call, ms", 1, ""),
    ("one_way_64", "GB/s", "64 MiB one way, all read, GB/s", 2, ""),
    ("idle", "callee %", "idle callee, % of a core", 2, "< 1 %"),
    ("idle", "caller %", "idle caller, % of a core", 2, "< 1 %"),
)
OTHER_ROWS = tuple(row for row in ROWS if row[0] in ("sync", "pipelined", "one_way_1", "one_way_64", "idle"))
OBSERVER_ROWS = (
    ("observers", "calls/s", f"{OBSERVERS} observers call one agent, calls a second", 0, ""),
    ("observers", "p50 us", f"one call of {OBSERVERS} observers at a time, p50, us", 0, ""),
)
# A callee whose threads are busy for 10 s gets 8 times 400 calls of 100 kB meanwhile.
OVERLOAD_ROWS = (
    ("overload", "callee MB", "callee's memory at its peak, above its base, MB", 0, "< 64 MB"),
    ("overload", "caller MB", "the largest caller's, MB", 0, "< 64 MB"),
    ("overload", "answered", "calls that were answered, %", 0, "100 %"),
    ("overload", "threads", "callee's threads, above its base", 0, "<= 16 + 6"),
)

STAGES = {
    "pair": ("two workers on one host", ROWS, PAIRS),
    "others": ("other libraries", OTHER_ROWS, OTHERS),
    "many": ("many to one", OBSERVER_ROWS, WITH_OBSERVERS),
    "overload": (f"{OBSERVERS} callers and a busy callee", OVERLOAD_ROWS, WITH_OBSERVERS),
}


@dataclass(slots=True)
class Running:
    """A contestant's program while it runs. `trouble`: why it is not measured any more."""

    contestant: Contestant
    process: "subprocess.Popen[str] | None" = None
    version: str = "-"
    trouble: str = ""
    samples: Samples = field(default_factory=dict)
    lines: "queue.Queue[str]" = field(default_factory=queue.Queue)

    def start(self, *, install: bool) -> None:
        """Start the program and wait until it is ready. Raises NotReady."""
        interpreter = _interpreter(self.contestant, install=install)
        with tempfile.TemporaryFile("w+") as errors:
            self.process = subprocess.Popen(
                [interpreter, str(_program(self.contestant)), *self.contestant.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_variables(self.contestant),
                start_new_session=True,
            )
            self.lines = queue.Queue()
            threading.Thread(target=_read, args=(self.process, self.lines), daemon=True).start()
            try:
                self.version = str(self._answer(START_LIMIT_S)["ready"])
                self.rest()
            except NotReady as reason:
                errors.seek(0)
                last = [line.strip() for line in errors if line.strip()][-1:]
                raise NotReady(f"{reason}: {' '.join(last)[:200]}") from None

    def measure(self, name: str, *, quick: bool) -> None:
        """Ask for one measure and keep its figures. Raises NotReady."""
        assert self.process is not None and self.process.stdin is not None
        if self.contestant.stops:
            os.killpg(self.process.pid, signal.SIGCONT)
        print(json.dumps({"measure": name, "quick": quick}), file=self.process.stdin, flush=True)
        found = self._answer(ANSWER_LIMIT_S)["figures"]
        self.rest()
        for figure, value in dict(found).items():  # type: ignore[call-overload]  # JSON
            self.samples.setdefault((name, figure), []).append(value)

    def rest(self) -> None:
        """Others are measured now."""
        if self.contestant.stops and self.process is not None:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def _answer(self, limit_s: float) -> dict[str, object]:
        try:
            line = self.lines.get(timeout=limit_s)
        except queue.Empty:
            raise NotReady(f"no answer within {limit_s:.0f} s") from None
        if not line:
            raise NotReady("its program ended")
        found: dict[str, object] = json.loads(line)
        return found

    def end(self) -> None:
        """End of input ends the program; what has not ended after a while is killed with all it has started."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        try:
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.stdin.close()
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()


def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _program(contestant: Contestant) -> Path:
    if contestant.checkout is None:
        return PEERS / contestant.program
    return contestant.checkout / "benchmarks" / "peers" / contestant.program


def _interpreter(contestant: Contestant, *, install: bool) -> str:
    if contestant.checkout is not None:
        return str(contestant.checkout / ".venv" / "bin" / "python")
    if contestant.environment is None:
        return sys.executable
    made = ENVIRONMENTS / contestant.environment / "bin" / "python"
    if not (PEERS / f"{contestant.environment}.txt").exists():
        raise NotReady("not installed: it has no pins in benchmarks/peers")
    if not install and not made.exists():
        raise NotReady("not installed: run with --install")
    return str(environment(contestant.environment) if install else made)


def _variables(contestant: Contestant) -> dict[str, str]:
    """Our own PYTHONPATH may name folders with other versions of what a peer uses."""
    variables = dict(os.environ)
    if contestant.environment is not None:
        variables.pop("PYTHONPATH", None)
    return variables


def run(
    contestants: Sequence[Contestant],
    measures: Sequence[str],
    rounds: int,
    args: argparse.Namespace,
    *,
    anew: bool = False,
) -> list[Running]:
    """Start all, measure round after round, end all. With `anew` each round has new processes."""
    running = [Running(contestant) for contestant in contestants]
    try:
        for number in range(rounds):
            for one in running:
                if number == 0 or (anew and not one.trouble):
                    one.end()
                    _trying(one, lambda one=one: one.start(install=args.install))
            say(f"round {number + 1} of {rounds}")
            for name in measures:
                for one in _turns(running, number):
                    if not one.trouble:
                        _trying(one, lambda one=one, name=name: one.measure(name, quick=args.quick))
    finally:
        for one in running:
            one.end()
    return running


def _turns(running: Sequence[Running], number: int) -> Sequence[Running]:
    """Who begins changes from round to round."""
    return running if number % 2 == 0 else running[::-1]


def _trying(one: Running, step) -> None:  # type: ignore[no-untyped-def]
    try:
        step()
    except (NotReady, OSError) as reason:
        one.trouble = str(reason)
        say(f"  {one.contestant.name}: {reason}")


def shown(title: str, rows: Sequence[tuple[str, str, str, int, str]], running: Sequence[Running]) -> str:
    """A table: a row a figure, a column a contestant, and fanwise over torch."""
    present = [one for one in running if one.samples]
    by_name = {one.contestant.name: one for one in present}
    beside_torch = {"fanwise", "torch"} <= by_name.keys()
    cells = []
    for measure, figure, text, digits, wanted in rows:
        key = (measure, figure)
        cells.append(
            [text, *(spread(one.samples[key]).shown(digits) if key in one.samples else "-" for one in present)]
        )
        if beside_torch:
            ours, theirs = (by_name[name].samples.get(key) for name in ("fanwise", "torch"))
            beside = ours and theirs and spread(theirs).median
            ratio = f"{spread(ours).median / spread(theirs).median:.2f}" if ours and theirs and beside else "-"
            cells[-1] += [ratio, wanted]
    more = ["fanwise / torch", "wanted"] if beside_torch else []
    return table([title, *(f"{one.contestant.name} {one.version}" for one in present), *more], cells)


def left_out(running: Sequence[Running]) -> list[str]:
    """A line for each contestant that did not get to the end."""
    return [f"Left out: {one.contestant.name} ({one.trouble})" for one in running if one.trouble]


def main() -> None:
    parser = argparse.ArgumentParser(description="remote calls, fanwise beside torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round with fewer calls")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a contestant's name; may repeat")
    parser.add_argument("--tables", action="append", default=[], choices=list(STAGES), help="may repeat; default: all")
    measures = sorted({row[0] for _, rows, _ in STAGES.values() for row in rows})
    parser.add_argument("--measures", action="append", default=[], choices=measures, help="may repeat; default: all")
    parser.add_argument(
        "--install", action="store_true", help="make the environments of the peers (downloads; minutes)"
    )
    args = parser.parse_args()
    facts = machine()
    rounds = 1 if args.quick else args.rounds
    tables, everything = [], []
    for name in args.tables or STAGES:
        title, rows, contestants = STAGES[name]
        rows = tuple(row for row in rows if not args.measures or row[0] in args.measures)
        if not rows:
            continue
        wanted = [one for one in contestants if not args.only or one.name in args.only]
        # What a process was given once it does not give back, so the peak of a second overload would be none.
        running = run(wanted, list(dict.fromkeys(row[0] for row in rows)), rounds, args, anew=name == "overload")
        everything += running
        tables.append("\n".join([shown(title, rows, running), *left_out(running)]))
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    payload = {
        "contestants": [
            {
                "name": one.contestant.name,
                "version": one.version,
                "trouble": one.trouble,
                "samples": {f"{m}: {f}": values for (m, f), values in one.samples.items()},
            }
            for one in everything
        ]
    }
    finish("rpc", tables, payload, facts=facts)


if __name__ == "__main__":
    main()
