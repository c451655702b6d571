"""Processor time of suggestions: of our searchers by the number of finished trials, and beside Optuna and Rustuna.

The first table has every searcher that has a name, with 100, 1,000 and 10,000 finished trials of seven hyperparameters,
of which four run at a time. Most trials are only observed; the suggestions for the last of each number are timed. Each
searcher has a process of its own.

The second table has whole searches of 1,000 trials over 40 numbers in [0, 1], one trial after another: TPE with one and
two objectives, CMA-ES and NSGA-II. fanwise runs in memory and with a record; its TPE is its own, the other samplers are
Optuna's. Optuna 5 and Rustuna have environments of their own. All take turns; imports are not measured. Three rounds
take eleven minutes.

    python benchmarks/suggestion_time.py [--only forest ...] [--rounds 3] [--peers]
"""

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from measuring import finish, machine, peak_mib, quantile, say, spread, table
from trial_overhead import PEERS, NotReady, environment

from fanwise.tune import Observation, Searcher, Space, SuggestContext, choice, loguniform, randint, uniform
from fanwise.tune.searchers import SEARCHERS

SPACE = Space(
    {
        "learning_rate": loguniform(1e-4, 1),
        "weight_decay": loguniform(1e-6, 1e-1),
        "momentum": uniform(0, 1),
        "dropout": uniform(0, 1),
        "depth": randint(1, 8),
        "width": randint(16, 512),
        "activation": choice(["relu", "tanh", "gelu"]),
    }
)
SIZES = (100, 1000, 10_000)
ASKED = 400  # so many suggestions are timed at each size, at most a fifth of it
SLOW = {"bayesopt": ((100,), 20)}
WORKERS = 4


def measured(name: str) -> list[tuple[int, list[float], float]]:
    """(finished trials, milliseconds of each suggestion, peak MiB so far) at each size. In a process of its own."""
    play(name, (60,), 20)  # loads libraries
    return play(name, *SLOW.get(name, (SIZES, ASKED)))


def play(name: str, sizes: Sequence[int], most: int) -> list[tuple[int, list[float], float]]:
    """As `measured`, with at most so many questions at each size."""
    searcher = SEARCHERS[name]()
    searcher.begin(SPACE, 0)
    found = []
    running: dict[int, dict[str, object]] = {}
    number = 0
    for size in sizes:
        taken_ms: list[float] = []
        while number < size:
            ask = SuggestContext(number, number, SPACE, pending=dict(running))
            if number < size - min(most, size // 5):
                running[number] = SPACE.sample(ask.random)
            else:
                began_s = time.process_time()
                config = searcher.suggest(ask)
                taken_ms.append((time.process_time() - began_s) * 1e3)
                assert config is not None, "the space has more configurations than that"
                running[number] = dict(config)
            number += 1
            if len(running) == WORKERS:
                _end(searcher, min(running), running)
        found.append((size, taken_ms, peak_mib()))
    return found


def _end(searcher: Searcher, trial_id: int, running: dict[int, dict[str, object]]) -> None:
    config = running.pop(trial_id)
    rate, momentum = config["learning_rate"], config["momentum"]
    assert isinstance(rate, float) and isinstance(momentum, float)
    loss = (math.log10(rate) + 2) ** 2 + (momentum - 0.9) ** 2 + 1e-3 * (trial_id * 7919 % 101)
    searcher.observe(Observation(trial_id, config, 1, 1.0, (loss,), {"loss": loss}))
    searcher.on_end(trial_id, "Completed")


SEARCHES = {
    "TPE": ("TPESampler", 1),
    "TPE, two objectives": ("TPESampler", 2),
    "CMA-ES": ("CmaEsSampler", 1),
    "NSGA-II, two objectives": ("NSGAIISampler", 2),
}
# name -> (program, --how, environment)
CONTESTANTS = {
    "Rustuna": ("floats_optuna.py", "rustuna", "rustuna"),
    "Optuna": ("floats_optuna.py", "optuna", "optuna"),
    "fanwise, in memory": ("floats_fanwise.py", "memory", None),
    "fanwise, with a record": ("floats_fanwise.py", "record", None),
}


def search_seconds(contestant: str, search: str, trials: int) -> float:
    """Return the processor time of one search in a process of its own. Raise NotReady if it fails."""
    program, how, wanted = CONTESTANTS[contestant]
    sampler, objectives = SEARCHES[search]
    interpreter = environment(wanted) if wanted else sys.executable
    command = [str(interpreter), str(PEERS / program), f"--how={how}", f"--sampler={sampler}"]
    done = subprocess.run(
        [*command, f"--objectives={objectives}", f"--trials={trials}"],
        check=False,
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if wanted is None or key != "PYTHONPATH"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"cpu_s"')]
    if done.returncode != 0 or not lines:
        raise NotReady(done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "no output")
    seconds: float = json.loads(lines[-1])["cpu_s"]
    return seconds


def beside_peers(rounds: int, trials: int) -> tuple[str, dict[str, list[float]]]:
    """Return the table of whole searches, and the seconds of each."""
    seconds: dict[tuple[str, str], list[float]] = {}
    troubles: dict[tuple[str, str], str] = {}
    for number in range(rounds):
        for search in SEARCHES:
            for contestant in CONTESTANTS:
                try:
                    seconds.setdefault((search, contestant), []).append(search_seconds(contestant, search, trials))
                    say(f"  round {number + 1}, {search}, {contestant}: {seconds[search, contestant][-1]:.2f} s")
                except (NotReady, OSError) as reason:
                    troubles[search, contestant] = str(reason)
    rows = []
    for search in SEARCHES:
        spreads = {name: spread(taken) for name in CONTESTANTS if (taken := seconds.get((search, name)))}
        for name in CONTESTANTS:
            row = [search, name, "-", "-", "-", troubles.get((search, name), "")]
            if name in spreads:
                ratios = [
                    f"{spreads[name].median / spreads[peer].median:.2f}" if peer in spreads else "-"
                    for peer in ("Rustuna", "Optuna")
                ]
                row[2:5] = [spreads[name].shown(2), *ratios]
            rows.append(row)
    header = [f"{trials:,} trials, 40 numbers", "", "s", "/ Rustuna", "/ Optuna", "remark"]
    return table(header, rows), {" | ".join(key): value for key, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="processor time of a suggestion")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=list(SEARCHERS))
    parser.add_argument("--rounds", type=int, default=3, help="of the searches beside the peers")
    parser.add_argument("--trials", type=int, default=1000, help="of the searches beside the peers")
    parser.add_argument("--peers", action="store_true", help="only the searches beside the peers")
    args = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    facts = machine()
    names = [] if args.peers else args.only or [name for name in SEARCHERS if name != "grid"]  # a grid has an end
    rows, raw = [], {}
    for name in names:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(measured, (name,))
        raw[name] = found
        rows += [
            [name, f"{size:,}", f"{quantile(ms, 0.5):.2f}", f"{quantile(ms, 0.99):.1f}", f"{mib:.0f}"]
            for size, ms, mib in found
        ]
    tables = [table(["a suggestion", "finished trials", "median ms", "p99 ms", "peak MiB"], rows)] if rows else []
    searches: dict[str, list[float]] = {}
    if not args.only:
        beside, searches = beside_peers(args.rounds, args.trials)
        tables.append(beside)
    finish("suggestion_time", tables, {"found": raw, "searches": searches}, facts=facts)


if __name__ == "__main__":
    main()
