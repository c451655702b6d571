"""How soon the first trial begins: in the first and the second search of a process, in a notebook, and in the demo.

Every measurement is a program of its own, and all of them take turns. Each program runs two searches of two trials. It
is compared with a fresh interpreter that imports the modules of the objective and does nothing else. The first turn
only fills the caches of the disk and of compiled modules, and is not counted.

The stages of the first search are told by the pool's own events, which the program wraps.

    python benchmarks/startup.py [--rounds 10] [--only "a no-op"]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from measuring import finish, machine, say, scratch_folder, spread, table

DEMO_LIMIT_S = 120.0
IN_NOTEBOOK = "in a notebook"
STAGES = ("launched", "supervisor", "warm process", "imported", "forked", "objective")

OBJECTIVES = {
    "a no-op": ("pass", "{report}"),
    "a module with torch": ("import torch", "{report}"),
    "a module with scikit-learn": ("import sklearn.svm, sklearn.model_selection", "{report}"),
    "a module with torch, in a notebook": ("import torch", "{report}"),
    "a module with torch, an optimizer": (
        "import torch",
        "torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)\n    {report}",
    ),
}

MODULE = """
{imports}
import os
import time
from fanwise.tune import report

def objective(x):
    with open(os.environ["MARKS"], "a") as file:
        file.write(f"{{time.monotonic()}}\\n")
    {body}
"""

PROGRAM = """
import json, os, sys, time
began_s = time.monotonic()
from fanwise.tune import FIFO, StoppingCriterion, Tuner, uniform
imported_s = time.monotonic() - began_s
from objective_module import objective
from fanwise.pool import interpreters, worker_set

seen_s = {}
def note(cls, method, stage):
    original = getattr(cls, method)
    def noted(self, *args, **kwargs):
        seen_s.setdefault(stage, time.monotonic())
        return original(self, *args, **kwargs)
    setattr(cls, method, noted)
note(interpreters.Interpreters, "_launch_supervisor", "launched")
note(interpreters.Interpreters, "_on_supervisor_link", "supervisor")
note(interpreters.Interpreters, "_on_interpreter_link", "warm process")
note(interpreters.Interpreters, "_on_prepared", "imported")
note(worker_set.WorkerSet, "_on_started", "forked")

first_s, stages = [], {}
for number in range(2):
    if os.path.exists(os.environ["MARKS"]):
        os.unlink(os.environ["MARKS"])
    stop = StoppingCriterion(max_num_trials_started=2)
    tuner = Tuner(objective, {"x": uniform(0, 1)}, FIFO("random", metric="loss"), stop, n_workers=1, quiet=True)
    run_s = time.monotonic()
    tuner.run()
    began = float(open(os.environ["MARKS"]).readline())
    first_s.append(began - run_s)
    if number == 0:
        seen_s["objective"] = began
        stages = {stage: at_s - run_s for stage, at_s in seen_s.items()}
from fanwise.pool.processes import descendants_of
time.sleep(0.5)  # the process that was forked ahead has gone
found = {}
for pid in descendants_of(os.getpid()):
    status = open(f"/proc/{pid}/smaps_rollup").read().split()
    found[pid] = (int(status[status.index("Rss:") + 1]), int(status[status.index("Pss:") + 1]))
def ticks():
    return sum(sum(map(int, open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[11:13])) for pid in found)
idle_cpu = None
if (idle_s := float(sys.argv[1])):
    time.sleep(2)  # the functions of the searches are given up
    idle_began, before = time.monotonic(), ticks()
    time.sleep(idle_s)
    idle_cpu = (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - idle_began)
print(json.dumps({
    "imported_s": imported_s, "first_s": first_s, "stages": stages, "idle_cpu": idle_cpu,
    "warm_mib": max(rss for rss, _ in found.values()) / 1024,
    "all_pss_mib": sum(pss for _, pss in found.values()) / 1024,
}))
"""

# Executes PROGRAM as a cell of a notebook, in a kernel of its own.
NOTEBOOK = """
import sys, nbformat
from nbclient import NotebookClient
cell = nbformat.v4.new_code_cell("import sys; sys.argv = ['', '0']\\n" + sys.argv[1])
book = nbformat.v4.new_notebook(cells=[cell])
NotebookClient(book, timeout=120, kernel_name="python3").execute()
print("".join(output["text"] for output in cell.outputs if output.get("name") == "stdout").strip())
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One program: what the imports of its module take alone, and what its two searches took."""

    import_s: float
    imported_s: float
    first_s: tuple[float, float]
    stages: dict[str, float]
    idle_cpu: float | None
    warm_mib: float
    all_pss_mib: float


def environment(folder: Path) -> dict[str, str]:
    """Compiled modules are kept, as they are for users, in a folder of ours."""
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **variables,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths)),
        "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled"),
        "FANWISE_HOME": str(folder / "home"),
        "MARKS": str(folder / "marks"),
    }


def fresh_import_s(folder: Path, module: str) -> float:
    """Seconds that a fresh interpreter takes to import a module, from its start to its exit."""
    began_s = time.perf_counter()
    # Not left by return: giving back the memory of torch takes a tenth of a second, and no job waits for that.
    command = f"import os, {module}; os._exit(0)"
    subprocess.run([sys.executable, "-c", command], check=True, env=environment(folder), cwd=folder)
    return time.perf_counter() - began_s


def measure(folder: Path, name: str, idle_s: float) -> Run:
    imports, body = OBJECTIVES[name]
    folder.mkdir(exist_ok=True)
    body = body.format(report="report(loss=x)")
    (folder / "objective_module.py").write_text(MODULE.format(imports=imports, body=body))
    import_s = fresh_import_s(folder, "objective_module")
    command = [sys.executable, "-c", PROGRAM, str(idle_s)]
    if name.endswith(IN_NOTEBOOK):
        command = [sys.executable, "-c", NOTEBOOK, PROGRAM]
    done = subprocess.run(command, check=True, env=environment(folder), cwd=folder, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    first, second = found.pop("first_s")
    return Run(import_s, first_s=(first, second), **found)


def demo_s(folder: Path) -> tuple[float, float]:
    """Seconds that the demo's imports take in a fresh interpreter, and seconds until its first trial has begun."""
    folder.mkdir(exist_ok=True)
    import_s = fresh_import_s(folder, "fanwise.cli.app, fanwise.cli.demo, torch, sklearn.datasets")
    command = [sys.executable, "-m", "fanwise", "demo", "--seconds", "60", "--out", str(folder / "pictures")]
    began_s = time.perf_counter()
    demo = subprocess.Popen(command, env=environment(folder), cwd=folder, stdout=subprocess.DEVNULL)
    try:
        while True:
            if any('"ready"' in path.read_text() for path in (folder / "home").rglob("events.jsonl")):
                return import_s, time.perf_counter() - began_s
            if demo.poll() is not None or time.perf_counter() - began_s > DEMO_LIMIT_S:
                raise RuntimeError(f"the demo has started no trial (exit status {demo.poll()})")
            time.sleep(0.002)
    finally:
        demo.send_signal(signal.SIGKILL)
        demo.wait()
        for path in (folder / "home").rglob("events.jsonl"):
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="time from Tuner.run() to the first trial")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", action="append", default=[], choices=[*OBJECTIVES, "demo"], help="may be repeated")
    parser.add_argument("--idle-s", type=float, default=5.0, help="how long idle processes are observed, once")
    args = parser.parse_args()
    facts = machine()
    runs: dict[str, list[Run]] = {name: [] for name in OBJECTIVES if name in args.only or not args.only}
    demos: list[tuple[float, float]] = []
    with scratch_folder() as folder:
        for number in range(args.rounds + 1):
            say(f"round {number} of {args.rounds}")
            for name in runs:
                run = measure(
                    folder / str(list(OBJECTIVES).index(name)), name, args.idle_s if number == args.rounds else 0.0
                )
                if number:
                    runs[name].append(run)
            if "demo" in args.only or not args.only:
                demo = demo_s(folder / "demo")
                if number:
                    demos.append(demo)
    rows = [
        [
            name,
            spread([run.import_s for run in found]).shown(2),
            spread([run.first_s[0] for run in found]).shown(2),
            spread([run.first_s[0] - run.import_s for run in found]).shown(2),
            spread([run.first_s[1] for run in found]).shown(3),
        ]
        for name, found in runs.items()
    ]
    if demos:
        imports, first = zip(*demos, strict=True)
        above = [each - import_s for import_s, each in demos]
        rows.append(
            [
                "`python -m fanwise demo`, from the start of the process",
                *(spread(values).shown(2) for values in (imports, first, above)),
                "",
            ]
        )
    header = [
        "objective",
        "its imports alone, s",
        "`run()` to first trial, s",
        "above the imports, s",
        "second search, s",
    ]
    stages = [
        [name, *(spread([run.stages[stage] for run in found]).shown(3) for stage in STAGES)]
        for name, found in runs.items()
    ]
    idle = [
        [
            name,
            spread([run.warm_mib for run in found]).shown(0),
            spread([run.all_pss_mib for run in found]).shown(0),
            spread([100 * run.idle_cpu for run in found if run.idle_cpu is not None]).shown(1),
        ]
        for name, found in runs.items()
        if not name.endswith(IN_NOTEBOOK)
    ]
    tables = [
        table(header, rows),
        table(["s after `run()`", *STAGES], stages),
        table(["idle after the searches", "warm process, MiB", "all processes, proportional, MiB", "CPU, %"], idle),
    ]
    payload = {
        "runs": {
            name: [[run.import_s, run.imported_s, *run.first_s, run.stages] for run in found]
            for name, found in runs.items()
        },
        "demo": demos,
    }
    finish("startup", tables, payload, facts=facts)


if __name__ == "__main__":
    main()
