"""What the board costs: how soon a page of a large search is there, and what three open pages take from a tuner.

    a record of 10,000 trials with 50 reports each  <--reads-- fanwise board <--Chromium: one page, cold and warm
    a tuner with two trials that report flat out    <--reads-- fanwise board <--Chromium: three pages, or none, by turns
                                                                             <--HTTP: the same answers, drawn by nobody

First paint is what Chromium calls first contentful paint. The best value is there when its number stands in the page,
the curves when the first of them is drawn; cold: the board has just been started and has read nothing yet.
Reports a second are counted in the record, between two fifths of the run, when the pages are open, and its end.

    python benchmarks/board.py [--rounds 6] [--quick]      needs Chromium, and fanwise[dev] for playwright
"""

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from measuring import finish, machine, ratio_of_neighbours, say, scratch_folder, spread, table

from fanwise.testing import within
from fanwise.testing.recorded_search import RecordedSearch
from fanwise.tune import RandomSearch, StoppingCriterion, Tuner, load_experiment, report, uniform
from fanwise.tune.record.progress import Progress
from fanwise.tune.record.reading import FILE_NAME
from fanwise.tune.record.writer import Record

N_WORKERS = 2
N_SLOTS = 16
VIEWS = ("", "#workers", "#trials")
ANSWERS = ("", "/workers", "/trials")  # what these pages ask for each second
META: dict[str, Any] = {
    "name": "large",
    "objective": "train",
    "metric": "error",
    "mode": "min",
    "objectives": [["error", "min"]],
    "n_workers": N_SLOTS,
    "seed": 1,
    "resource_attr": "epoch",
    "stop": {"max_num_trials_started": 10_000},
    "space": {
        "learning_rate": {"domain": "loguniform", "lower": 1e-4, "upper": 1.0},
        "width": {"domain": "randint", "lower": 8, "upper": 512},
    },
}


def write_large(folder: Path, num_trials: int, num_reports: int) -> None:
    """A search that has ended, with plausible curves, of `N_SLOTS` workers."""
    progress, chance = Progress(META), random.Random(1)
    with Record.create(folder / "large", META) as record:

        def add(t_s: float, kind: str, trial_id: int | None, body: dict[str, Any]) -> None:
            record.append(t_s, kind, trial_id, body)
            progress.fold(t_s, kind, trial_id, body)

        search = RecordedSearch(add)
        for first in range(0, num_trials, N_SLOTS):
            began_s = first / N_SLOTS * (num_reports + 2)
            batch = range(first, min(first + N_SLOTS, num_trials))
            floors = {}
            for trial_id in batch:
                rate = 10 ** chance.uniform(-4, 0)
                floors[trial_id] = 0.1 * abs(math.log10(rate) + 2) + 0.02 * chance.random()
                config = {"learning_rate": rate, "width": chance.randint(8, 512)}
                search.start(began_s, trial_id, config, slot=trial_id % N_SLOTS)
                search.ready(began_s + 0.02, trial_id)
            for epoch in range(1, num_reports + 1):
                for trial_id in batch:
                    error = floors[trial_id] + 1 / (epoch + 1) + chance.gauss(0, 0.003)
                    search.report(began_s + epoch, trial_id, epoch, {"epoch": epoch, "error": error})
            for trial_id in batch:
                search.end(began_s + num_reports + 1, trial_id, "Completed", num_reports + 0.98)
                search.free(began_s + num_reports + 1, trial_id)
        search.finish(num_trials / N_SLOTS * (num_reports + 2), "max_num_trials_started reached")
        record.set_meta({"summary": progress.summary()})
        record.commit()


@contextmanager
def board(home: Path) -> Iterator[str]:
    """The address of a board in a process of its own."""
    command = [sys.executable, "-m", "fanwise", "board", "--port", "0", "--home", str(home)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rsplit(" ", 1)[1].strip()
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    if found is None:
        raise RuntimeError("there is no chromium on the path: apt install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


SINCE = "performance.now() / 1000"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime / 1000"


def page_times(browser: Any, address: str) -> tuple[float, float, float]:
    """Seconds from the beginning of the navigation to first paint, to the best value, and to the first curve."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}experiments/large", wait_until="commit")
    page.locator("#best .big").wait_for()
    best_s = page.evaluate(SINCE)
    page.locator("#curves .scatterlayer path.js-line").first.wait_for(state="attached", timeout=120_000)
    curve_s = page.evaluate(SINCE)
    painted_s = page.evaluate(PAINTED)
    context.close()
    return painted_s, best_s, curve_s


def flat_out(x: float, num_reports: int) -> None:
    """Report without a pause."""
    for i in range(num_reports):
        report(loss=x + i)


def search(num_reports: int) -> None:
    """Two trials, side by side; what `reports_per_s` starts."""
    space = {"x": uniform(0, 1), "num_reports": num_reports}
    stop = StoppingCriterion(max_num_trials_started=N_WORKERS)
    searcher = RandomSearch(metric="loss", random_seed=1)
    Tuner(flat_out, space, searcher, stop, n_workers=N_WORKERS, name="flat-out", quiet=True).run()


@contextmanager
def asked_each_second(urls: Sequence[str]) -> Iterator[None]:
    """Somebody asks for each of these once a second, and draws nothing."""
    over = threading.Event()

    def ask(url: str) -> None:
        while not over.wait(1.0):
            with suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=30) as answer:
                answer.read()

    threads = [threading.Thread(target=ask, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def reports_per_s(
    browser: Any, num_reports: int, *, pages: Sequence[str] = (), answers: Sequence[str] = (), home: Path
) -> float:
    """The rate at which a search reports while these pages of it are open, or these answers asked for each second."""
    shutil.rmtree(home / "flat-out", ignore_errors=True)
    command = [sys.executable, __file__, "--search", str(num_reports)]
    with board(home) as address:
        process = subprocess.Popen(command, env={**os.environ, "FANWISE_HOME": str(home)})
        try:
            within(60.0, (home / "flat-out" / FILE_NAME).exists, "the search has begun")
            context = browser.new_context()
            for view in pages:
                context.new_page().goto(f"{address}experiments/flat-out{view}", wait_until="commit")
            with asked_each_second([f"{address}api/experiments/flat-out{answer}" for answer in answers]):
                while process.poll() is None:
                    if pages:
                        context.pages[0].wait_for_timeout(100)
                    else:
                        time.sleep(0.1)
            context.close()
        finally:
            process.kill()
            process.wait()
    times_s = load_experiment(home / "flat-out").history().reports.t_s
    if len(times_s) != N_WORKERS * num_reports:
        raise RuntimeError(f"wanted {N_WORKERS * num_reports} reports, got {len(times_s)}")
    begin_s, end_s = times_s[0] + 0.4 * (times_s[-1] - times_s[0]), times_s[0] + 0.95 * (times_s[-1] - times_s[0])
    return sum(begin_s <= t_s < end_s for t_s in times_s) / (end_s - begin_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="how soon a page is there, and what three of them cost the tuner")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one round, small searches")
    parser.add_argument("--search", type=int, metavar="N", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search is not None:
        search(args.search)
        return
    rounds, num_trials, num_reports = (1, 500, 30_000) if args.quick else (args.rounds, 10_000, 120_000)
    facts = machine()
    cold: list[tuple[float, float, float]] = []
    warm: list[tuple[float, float, float]] = []
    alone: list[float] = []
    watched: list[float] = []
    asked: list[float] = []
    with scratch_folder() as folder, chromium() as browser:
        write_large(folder, num_trials, 50)
        for number in range(rounds):
            with board(folder) as address:
                cold.append(page_times(browser, address))
                warm.append(page_times(browser, address))
            turns = [((), (), alone), (VIEWS, (), watched), ((), ANSWERS, asked)]
            for pages, answers, rates in turns if number % 2 else reversed(turns):
                rates.append(reports_per_s(browser, num_reports, pages=pages, answers=answers, home=folder))
            rates_now = ", ".join(f"{rates[-1]:.0f}" for rates in (alone, watched, asked))
            say(f"round {number + 1}: cold {cold[-1]}, warm {warm[-1]}; {rates_now} reports/s")
    names = ("first paint", "the best value stands in the page", "the curves are drawn")
    times = [
        [f"{name}, s", *(spread([each[place] for each in times]).shown(2) for times in (cold, warm))]
        for place, name in enumerate(names)
    ]
    reported = [
        ["no page", spread(alone).shown(0), ""],
        ["three pages in Chromium", spread(watched).shown(0), ratio_of_neighbours(alone, watched)],
        ["their answers, drawn by nobody", spread(asked).shown(0), ratio_of_neighbours(alone, asked)],
    ]
    tables = [
        table([f"{num_trials:,} trials, {num_trials * 50:,} reports", "cold", "warm"], times),
        table(["durable reports a second, 2 workers", "measured", "of none, by rounds"], reported),
    ]
    finish(
        "board", tables, {"cold": cold, "warm": warm, "alone": alone, "watched": watched, "asked": asked}, facts=facts
    )


if __name__ == "__main__":
    main()
