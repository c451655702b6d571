"""Which searcher finds the best configuration soonest: ours beside Optuna's, Syne Tune's and Ray Tune's, on tables.

    for each seed, table, method:  simulate(...) with 4 workers  --a line a run-->  .bench-results/searchers.jsonl
    of all lines: regret over budget, mean ranks with bootstrap intervals, the time of a suggestion  --> tables, figure

All methods see the same tables, spaces, budgets and seeds, and the same simulated workers: peers run in environments of
their own (pins in peers/*.txt, made if missing) and are asked line by line, see searchers_parts/peers.py. The budget is
virtual time, that of 100 median trainings of the table for the 4 workers together; thinking costs no virtual time. Slow
methods may get a smaller one (`--only "Optuna GP" --trainings 40`) and are compared with the others up to there. Runs
that are in the file are not run again, so it can be stopped at any time and continued. The tables' folder is
shared/data beside the checkout, or BENCHMARK_DATA; `--csv` takes a table of your own.

`--page FILE` writes all tables between two marks of a Markdown page, and `--figure docs/img/searchers.png` draws the
figure of docs/benchmarks.md.

    python benchmarks/searchers.py [--seeds 5] [--processes 2] [--minutes 60] [--only METHOD ...] [--tables NAME ...]
    python benchmarks/searchers.py --csv curves.csv --hyperparameters lr,width --metric error [--mode max]
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import RESULTS, finish, machine, say
from searchers_parts import tasks
from searchers_parts.methods import METHODS, Method
from searchers_parts.regret import Run
from searchers_parts.runs import RunFile, Settings, search
from searchers_parts.shown import counted, draw, tables_of, write_page
from trial_overhead import NotReady, environment

Wanted = tuple[str, Method, int]  # table, method, seed
BY_NAME = {method.name: method for method in METHODS}


def own_table(args: argparse.Namespace) -> tasks.Task | None:
    """The table of --csv."""
    if args.csv is None:
        return None
    columns = tuple(args.hyperparameters.split(","))
    return tasks.of_csv(args.csv, columns, args.metric, args.mode, args.resource, args.elapsed)


def run_one(args: argparse.Namespace, table: str, name: str, seed: int, interpreter: Path | None) -> Run:
    """In a process of its own: one search."""
    task = own_table(args) or tasks.named(table)
    return search(task, BY_NAME[name], seed, args.trainings, Settings(args.workers), interpreter)


def interpreters(methods: Sequence[Method]) -> tuple[dict[str, Path], list[str]]:
    """The interpreter of each environment that the methods need, and a line for each that cannot be had."""
    made: dict[str, Path] = {}
    troubles = []
    for name in sorted({method.peer[0] for method in methods if method.peer is not None}):
        try:
            made[name] = environment(name)
        except (NotReady, OSError) as reason:
            troubles.append(f"Left out: {name} ({reason})")
    return made, troubles


def missing(args: argparse.Namespace, names: Sequence[str], methods: Sequence[Method], file: RunFile) -> list[Wanted]:
    """What is to be run, seed by seed, so that all methods have about equally many when it is stopped."""
    suits = {
        (table, method.name): method.suits(own_table(args) or tasks.named(table))
        for table in names
        for method in methods
    }
    return [
        (table, method, seed)
        for seed in range(args.seeds)
        for table in names
        for method in methods
        if suits[table, method.name] and not file.has(table, method.name, seed, args.trainings)
    ]


def run_all(args: argparse.Namespace, wanted: Sequence[Wanted], made: dict[str, Path], file: RunFile) -> list[str]:
    """Run what is wanted, as long as there is time. Returns a line for each method that failed."""
    until_s = time.monotonic() + args.minutes * 60.0
    failed: dict[str, str] = {}
    fresh = multiprocessing.get_context("spawn")  # pandas and its threads are loaded here
    with concurrent.futures.ProcessPoolExecutor(args.processes, mp_context=fresh) as pool:
        jobs: dict[concurrent.futures.Future[Run], Wanted] = {}
        rest: Iterator[Wanted] = iter(wanted)
        done = 0
        while True:
            while len(jobs) < args.processes and time.monotonic() < until_s:
                table, method, seed = next(rest, (None, None, 0))
                if table is None or method is None:
                    break
                if method.name not in failed:
                    interpreter = made[method.peer[0]] if method.peer is not None else None
                    jobs[pool.submit(run_one, args, table, method.name, seed, interpreter)] = (table, method, seed)
            if not jobs:
                return [f"Stopped: {name} ({why})" for name, why in failed.items()]
            for job in concurrent.futures.wait(jobs, return_when=concurrent.futures.FIRST_COMPLETED).done:
                table, method, seed = jobs.pop(job)
                error = job.exception()
                done += 1
                if error is None:
                    file.add(job.result())
                    say(f"  {done}/{len(wanted)} {table}, {method.name}, seed {seed}")
                else:
                    failed[method.name] = f"{table}, seed {seed}: {type(error).__name__}: {error}"
                    say(f"  {method.name} is left out from now on: {failed[method.name]}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="searchers of ours and of peers on tables of learning curves")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method on each table")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after that")
    parser.add_argument("--trainings", type=int, default=100, help="budget, in median trainings of the table")
    parser.add_argument("--workers", type=int, default=4, help="simulated workers")
    parser.add_argument("--quick", action="store_true", help="one seed of our cheapest methods, a tenth of the budget")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help="a method's name; may repeat")
    parser.add_argument("--tables", action="append", default=[], metavar="NAME", help="a table's name; may repeat")
    parser.add_argument("--file", type=Path, default=RESULTS / "searchers.jsonl", help="finished runs, continued")
    parser.add_argument("--forget", action="append", default=[], metavar="METHOD", help="drop its runs; may repeat")
    parser.add_argument("--report", action="store_true", help="run nothing: tables and figure of what is in the file")
    parser.add_argument("--figure", type=Path, default=RESULTS / "searchers.png")
    parser.add_argument("--beside", metavar="METHOD", help="also show how often this one was better than each other")
    parser.add_argument("--page", type=Path, help="a page whose tables are written anew, between its two marks")
    parser.add_argument("--csv", type=Path, help="a table of your own: a row for each report")
    parser.add_argument("--hyperparameters", help="its columns that make a configuration, with commas between")
    parser.add_argument("--metric", help="the column that is optimised")
    parser.add_argument("--mode", choices=["min", "max"], default="min")
    parser.add_argument("--resource", default="epoch", help="the column that says how far a training was")
    parser.add_argument("--elapsed", default="elapsed_s", help="the column with the seconds of training so far")
    args = parser.parse_args()
    unknown = [
        name for name in [*args.only, *args.forget, *([args.beside] if args.beside else [])] if name not in BY_NAME
    ]
    if unknown:
        parser.error(f"no method is called {', '.join(unknown)}; there are: {'; '.join(BY_NAME)}")
    if args.csv is not None and not (args.hyperparameters and args.metric):
        parser.error("--csv needs --hyperparameters and --metric")
    if args.quick:
        args.seeds, args.trainings = 1, 20
        args.only = args.only or ["random", "Sobol", "ASHA"]
        args.file = args.file.with_suffix(".quick.jsonl")
    return args


def main() -> None:
    args = arguments()
    # A searcher's linear algebra is small, and several processes run side by side.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    facts = machine()
    own = own_table(args)
    names = args.tables or ([own.name] if own is not None else tasks.names())
    if not names:
        raise SystemExit(f"there are no tables in {tasks.DATA}; --csv takes one of your own")
    file = RunFile(args.file, Settings(args.workers))
    file.forget(args.forget)
    methods = [method for method in METHODS if not args.only or method.name in args.only]
    notes: list[str] = []
    if not args.report:
        made, notes = interpreters(methods)
        methods = [method for method in methods if method.peer is None or method.peer[0] in made]
        notes += run_all(args, missing(args, names, methods, file), made, file)
    runs = [run for run in file.runs.values() if run.method in {m.name for m in methods} and run.table in names]
    draw(runs, methods, args.figure)
    tables = tables_of(runs, methods, args.beside)
    if args.page is not None:
        write_page(args.page, [*tables, counted(runs)])
    payload = {"file": str(args.file), "runs": len(runs), "notes": notes}
    finish("searchers", [*tables, counted(runs), *notes], payload, facts=facts)


if __name__ == "__main__":
    main()
