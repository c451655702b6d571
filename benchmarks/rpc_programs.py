"""Whole programs with fanwise.rpc, beside the same programs with torch.distributed.rpc.

    for each round, for each program: fanwise, torch, one after the other, as processes of their own --> tables

A program is one file: an example of this repository, or one under peers/ that an example of torch's has been the model
of. For torch its imports are changed, nothing else; both get the same constants. The time is that of the whole process,
from its start to its end, with all that it starts; `peers/rpc_sections.py` says where it went. Who begins changes from
round to round. Processor time is that of all processes of a program. Each process computes with one thread: three to
six of them share the cores, and threads of OpenMP that spin for each other there would drown what we measure.

    python benchmarks/rpc_programs.py [--rounds 5] [--quick] [--only NAME ...] [--threads 1]
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measuring import finish, machine, say, spread, table

HERE = Path(__file__).resolve().parent
PEERS, EXAMPLES = HERE / "peers", HERE.parent / "examples"
LIBRARIES = ("fanwise", "torch")
LIMIT_S = 900.0
SECTIONS_VARIABLE = "FANWISE_BENCH_SECTIONS"  # as in peers/rpc_sections.py

# What of a program is another line with torch. All else is the same text.
IMPORTS = {
    "import fanwise.rpc as rpc": "import torch.distributed.rpc as rpc",
    "from fanwise.rpc import autograd": "import torch.distributed.autograd as autograd",
    "from fanwise.rpc.optim import": "from torch.distributed.optim import",
}
WATCHED = "import {rpc} as rpc\nimport rpc_sections; rpc_sections.watch(rpc)\n"
SECTIONS = (("joining", "start"), ("joined", "join"), ("leaving", "work"), ("ended", "leave"))


@dataclass(frozen=True, slots=True)
class Program:
    """A program: its file, what its constants are set to, and to what in a quick run; what is wanted of the ratio."""

    name: str
    path: Path
    constants: Mapping[str, object]
    quick: Mapping[str, object]
    wanted: str = "<= 1.0"


def pipeline(micro: int) -> Program:
    """ResNet-50 on two workers."""
    quick = {"BATCHES, BATCH, IMAGE, CLASSES": (1, 8, 64, 10)}
    return Program(f"ResNet-50 pipeline, micro-batches of {micro}", PEERS / "rpc_pipeline.py", {"MICRO": micro}, quick)


def small_pipeline(count: int) -> Program:
    """The example's smaller ResNet on two workers."""
    name = f"pipeline_resnet, {count} micro-batch{'es' if count > 1 else ''}"
    constants = {"BATCH, MICRO_BATCHES, LR, SEED": (64, count, 0.1, 1)}
    return Program(name, EXAMPLES / "pipeline_resnet.py", constants, {"EPOCHS": 1})


# One observer plays the same game with both libraries. Two of them do not, as they may come in another order: there the
# policy does not learn, which makes the games as long on the average.
PROGRAMS = (
    Program(
        "rl_cartpole, 1 observer",
        EXAMPLES / "rl_cartpole.py",
        {"OBSERVERS": 1, "SOLVED": 100.0},
        {"SOLVED": 12.0},
        "<= 0.9",
    ),
    Program(
        "rl_cartpole_batched",
        EXAMPLES / "rl_cartpole_batched.py",
        {"EPISODES": 200, "GAMMA, LR, SEED, LOG_INTERVAL": (0.99, 0.0, 1, 50)},
        {"EPISODES": 3},
        "<= 0.9",
    ),
    *(
        Program(
            f"reinforce, 3 observers, {name}",
            PEERS / "rpc_reinforce.py",
            {"TOGETHER": together},
            {"OBSERVERS, EPISODES, STEPS": (2, 1, 20)},
            "<= 0.9",
        )
        for name, together in (("together", True), ("each alone", False))
    ),
    Program("rnn_parameter_server", EXAMPLES / "rnn_parameter_server.py", {"EPOCHS": 40}, {"EPOCHS": 1}),
    Program("parameter_server_batched", EXAMPLES / "parameter_server_batched.py", {}, {"STEPS": 5}),
    Program(
        "parameter server, 94 MB, 5 trainers",
        PEERS / "rpc_parameter_server.py",
        {},
        {"TRAINERS": 2, "STEPS": 1, "BATCH, IMAGE, CLASSES, LR, SEED": (2, 32, 30, 0.001, 1)},
    ),
    *(small_pipeline(count) for count in (1, 2, 4, 8)),
    *(pipeline(micro) for micro in (1, 2, 4, 8)),
    Program("first calls", PEERS / "rpc_first_calls.py", {}, {}),
)


@dataclass(slots=True)
class Run:
    """A finished run: seconds of the whole, of its parts as rank 0 saw them, and of processors."""

    wall_s: float
    cpu_s: float
    parts_s: dict[str, float]


@dataclass(slots=True)
class Found:
    """What a program came to, by library, a run a round. `trouble`: why there is not more."""

    program: Program
    runs: dict[str, list[Run]] = field(default_factory=lambda: {name: [] for name in LIBRARIES})
    trouble: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """What rank 0 had done, and when, in seconds of the monotonic clock."""

    name: str
    s: float


class Failed(Exception):
    """A program ended otherwise than it should."""


def text_of(program: Program, library: str, folder: Path, *, quick: bool) -> str:
    """The program for a library. Raises LookupError when a constant or the import is not where it is looked for."""
    text = program.path.read_text()
    for name, value in {**program.constants, **(program.quick if quick else {})}.items():
        text, count = re.subn(rf"^{name} = [^#\n]+", f"{name} = {value!r}  ", text, flags=re.MULTILINE)
        if count != 1:
            raise LookupError(f"{program.path.name} has {count} lines that begin with {name!r} =")
    if library == "torch":
        for ours, theirs in IMPORTS.items():
            text = text.replace(ours, theirs)
    text, count = re.subn(
        r"^import (\S+\.rpc) as rpc\b.*\n", lambda m: WATCHED.format(rpc=m[1]), text, flags=re.MULTILINE
    )
    if count != 1:
        raise LookupError(f"{program.path.name} imports rpc in {count} lines of the form 'import ....rpc as rpc'")
    return text.replace("file:///", f"file://{folder}/")


def run(program: Program, library: str, *, threads: int, quick: bool) -> Run:
    """Run a program with a library, from its start to its end. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="fw-") as name, tempfile.TemporaryFile("w+") as said:
        folder = Path(name)
        script, sections = folder / program.path.name, folder / "sections.jsonl"
        script.write_text(text_of(program, library, folder, quick=quick))
        variables = {**os.environ, "PYTHONPATH": str(PEERS), SECTIONS_VARIABLE: str(sections)}
        variables["OMP_NUM_THREADS"] = str(threads)
        variables.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # torch has its bytecode; nobody compiles a library anew each time
        before = os.times()
        began_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(script)], stdout=said, stderr=said, cwd=folder, env=variables, start_new_session=True
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {LIMIT_S:.0f} s") from None
        finally:
            _end(process)
        ended_s, after = time.monotonic(), os.times()
        if status != 0:
            said.seek(0)
            last = [line.strip() for line in said if line.strip()][-1:]
            raise Failed(f"ended with {status}: {' '.join(last)[:200]}")
        lines = map(json.loads, sections.read_text().splitlines())
        moments = [Moment(line["name"], line["s"]) for line in lines if line["rank"] == 0]
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(ended_s - began_s, cpu_s, parts_of(moments, began_s, ended_s))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Whatever a program has left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def parts_of(moments: Sequence[Moment], began_s: float, ended_s: float) -> dict[str, float]:
    """Seconds from each moment that was written down to the next, by what had been done at its end."""
    parts: dict[str, float] = {}
    last_s, names = began_s, dict(SECTIONS)
    for moment in [*moments, Moment("ended", ended_s)]:
        if moment.name == "left":
            continue  # the rest of leaving is the end of the process
        parts[names.get(moment.name, moment.name)] = moment.s - last_s
        last_s = moment.s
    return parts


def measure(programs: Sequence[Program], rounds: int, *, threads: int, quick: bool) -> list[Found]:
    """All programs, round after round, the libraries one after the other."""
    found = [Found(program) for program in programs]
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for one in found:
            for library in LIBRARIES if number % 2 == 0 else LIBRARIES[::-1]:
                if library in one.trouble:
                    continue
                try:
                    one.runs[library].append(run(one.program, library, threads=threads, quick=quick))
                except (Failed, OSError) as reason:
                    one.trouble[library] = str(reason)
            say(f"  {one.program.name}: " + ", ".join(_last(one, library) for library in LIBRARIES))
    return found


def _last(one: Found, library: str) -> str:
    if library in one.trouble:
        return f"{library} {one.trouble[library]}"
    return f"{library} {one.runs[library][-1].wall_s:.1f} s"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Of the medians."""
    return f"{spread(ours).median / spread(theirs).median:.2f}" if ours and theirs else "-"


def whole(found: Sequence[Found]) -> str:
    """A row a program: seconds of it, and of the processors."""
    rows = []
    for one in found:
        walls = [[each.wall_s for each in one.runs[library]] for library in LIBRARIES]
        cpus = [[each.cpu_s for each in one.runs[library]] for library in LIBRARIES]
        shown = [spread(values).shown() if values else "-" for values in (*walls, *cpus)]
        rows.append([one.program.name, *shown[:2], ratio(*walls), one.program.wanted, *shown[2:], ratio(*cpus)])
    header = ["whole program", "fanwise, s", "torch, s", "fanwise / torch", "wanted"]
    return table([*header, "fanwise, CPU s", "torch, CPU s", "CPU, fanwise / torch"], rows)


def parts(found: Sequence[Found]) -> str:
    """A row a program, a column a section: fanwise and torch, medians in seconds."""
    names = [name for _, name in SECTIONS]
    rows = [
        [one.program.name, *(_beside(one, name, 2) for name in names)]
        for one in found
        if not one.trouble and set(one.runs["fanwise"][0].parts_s) == set(names)
    ]
    return table(["seconds, fanwise and torch", *names], rows)


def moments(found: Sequence[Found]) -> str:
    """A row a moment that a program has written down itself."""
    names = {name for _, name in SECTIONS}
    rows = []
    for one in found:
        if one.trouble or set(one.runs["fanwise"][0].parts_s) <= names:
            continue
        for name in one.runs["fanwise"][0].parts_s:
            values = [[run.parts_s[name] * 1e3 for run in one.runs[library]] for library in LIBRARIES]
            rows.append([f"{one.program.name}: {name}", *(spread(each).shown() for each in values), ratio(*values)])
    return table(["ms", *LIBRARIES, "fanwise / torch"], rows)


def _beside(one: Found, name: str, digits: int) -> str:
    medians = [spread([run.parts_s[name] for run in one.runs[library]]).median for library in LIBRARIES]
    return " / ".join(f"{median:.{digits}f}" for median in medians)


def main() -> None:
    parser = argparse.ArgumentParser(description="whole programs, fanwise.rpc beside torch's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of small programs")
    parser.add_argument("--threads", type=int, default=1, help="of OpenMP in each process")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="part of a name; may repeat")
    args = parser.parse_args()
    chosen = [one for one in PROGRAMS if not args.only or any(part in one.name for part in args.only)]
    facts = machine()
    found = measure(chosen, 1 if args.quick else args.rounds, threads=args.threads, quick=args.quick)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    tables = [whole(found), parts(found), moments(found)]
    tables += [f"Left out: {one.program.name}, {name}: {why}" for one in found for name, why in one.trouble.items()]
    payload = {
        one.program.name: {
            library: [{"wall_s": each.wall_s, "cpu_s": each.cpu_s, **each.parts_s} for each in runs]
            for library, runs in one.runs.items()
        }
        for one in found
    }
    finish("rpc_programs", tables, payload, facts=facts)


if __name__ == "__main__":
    main()
