"""What the board costs: how soon a page of a large search is there, and what three open pages take from a tuner.

    a record of 10,000 trials with 50 reports each  <--reads-- fanwise board <--Chromium: one page, cold and warm
    a tuner with two trials that report flat out    <--reads-- fanwise board <--Chromium: three pages, or none, by turns
                                                                             <--HTTP: the same answers, drawn by nobody

First paint is what Chromium calls first contentful paint. The best value is there when its number stands in the page,
the curves when the first of them is drawn; cold: the board has just been started and has read nothing yet.
Reports a second are counted in the record while pages are open and have settled, and compared with the mean of the
stretches before and after, without any, of the same search. They vary by a tenth from stretch to stretch, so the CPU
time of board and browser is counted too: on a machine that tuner and trials fill, it is what they have less.

    python benchmarks/board.py [--rounds 4] [--quick]      needs Chromium, and fanwise[dev] for playwright
"""

import argparse
import itertools
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import psutil
from measuring import finish, machine, ratio_of_neighbours, say, scratch_folder, spread, table

from fanwise.testing import within
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform
from fanwise.tune.record.event_file import EVENTS_NAME, EventReader
from fanwise.tune.record.log import Record
from fanwise.tune.record.state import SearchState

import support_path  # noqa: F401  # isort: skip
from recorded_search import RecordedSearch  # isort: skip

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
    progress, chance = SearchState(META), random.Random(1)
    with Record.create(folder / "large", META) as record:

        def add(t_s: float, kind: str, trial_id: int | None, body: dict[str, Any]) -> None:
            record.append(t_s, kind, trial_id, body)
            progress.add(t_s, kind, trial_id, body)

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
        record.set_summary(progress.summary())
        record.commit()


@contextmanager
def board(home: Path) -> Iterator[str]:
    """The address of a board in a process of its own."""
    command = [sys.executable, "-m", "fanwise", "board", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "FANWISE_HOME": str(home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
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
    page.goto(address)  # sets the cookie, and then loads the list
    page.locator("#rows tr").first.wait_for()
    page.goto(urljoin(address, "/experiments/large"), wait_until="commit")
    page.locator("#best .big").wait_for()
    best_s = page.evaluate(SINCE)
    page.locator("#curves .scatterlayer path.js-line").first.wait_for(state="attached", timeout=120_000)
    curve_s = page.evaluate(SINCE)
    painted_s = page.evaluate(PAINTED)
    context.close()
    return painted_s, best_s, curve_s


def flat_out(x: float) -> None:
    """Report without a pause, until the search is ended."""
    for i in itertools.count():
        report(loss=x + i)


def search() -> None:
    """Two trials, side by side; what `stretches` starts."""
    space = {"x": uniform(0, 1)}
    stop = StoppingCriterion(max_num_trials_started=N_WORKERS)
    searcher = FIFO(metric="loss", random_seed=1)
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some seconds of a search that reports flat out: reports a second, and the cores that board and browser took."""

    reports_per_s: float
    board_cores: float
    browser_cores: float


def cpu_s(roots: Sequence[psutil.Process]) -> float:
    """CPU seconds of these processes and all below them."""
    spent = 0.0
    for process in [child for root in roots for child in (root, *root.children(recursive=True))]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def stretches(browser: Any, kinds: Sequence[str], *, settle_s: float, lasts_s: float, home: Path) -> list[Stretch]:
    """One search, whose pages are open or asked for by turns. Each kind: "none", "pages" or "answers"."""
    shutil.rmtree(home / "flat-out", ignore_errors=True)
    browsers = psutil.Process().children()
    folder = home / "flat-out"
    with board(home) as address:
        boards = [process for process in psutil.Process().children() if process not in browsers]
        search = subprocess.Popen([sys.executable, __file__, "--search"], env={**os.environ, "FANWISE_HOME": str(home)})

        def num_events() -> int:
            return sum(map(len, reader.read()), reader.last_seq)

        def stretch(kind: str) -> Stretch:
            context = browser.new_context()
            idle = context.new_page()
            if kind == "pages":
                idle.goto(address)  # sets the cookie, and then loads the list
                idle.locator("#rows tr").first.wait_for()
                idle.goto("about:blank")
                for view in VIEWS:
                    page_address = urljoin(address, f"/experiments/flat-out{view}")
                    context.new_page().goto(page_address, wait_until="commit")
            api, token = urljoin(address, "/api/experiments/flat-out"), urlsplit(address).query
            urls = [f"{api}{answer}?{token}" for answer in ANSWERS if kind == "answers"]
            with asked_each_second(urls):
                idle.wait_for_timeout(1000 * settle_s)
                before = time.monotonic(), num_events(), cpu_s(boards), cpu_s(browsers)
                idle.wait_for_timeout(1000 * lasts_s)
                after = time.monotonic(), num_events(), cpu_s(boards), cpu_s(browsers)
            context.close()
            passed_s, reports, of_board, of_browser = (new - old for old, new in zip(before, after, strict=True))
            return Stretch(reports / passed_s, of_board / passed_s, of_browser / passed_s)

        try:
            within(60.0, (folder / EVENTS_NAME).exists, "the search has begun")
            time.sleep(settle_s)
            reader = EventReader(folder)
            return [stretch(kind) for kind in kinds]
        finally:
            search.kill()
            search.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="how soon a page is there, and what three of them cost the tuner")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="one round, small searches")
    parser.add_argument("--search", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search:
        search()
        return
    rounds, num_trials = (1, 500) if args.quick else (args.rounds, 10_000)
    settle_s, lasts_s = (2.0, 2.0) if args.quick else (15.0, 60.0)  # the board looks twice a minute then
    facts = machine()
    cold: list[tuple[float, float, float]] = []
    warm: list[tuple[float, float, float]] = []
    beside: dict[str, list[float]] = {"pages": [], "answers": []}
    found: dict[str, list[Stretch]] = {"pages": [], "answers": []}
    with scratch_folder() as folder, chromium() as browser:
        write_large(folder, num_trials, 50)
        for number in range(rounds):
            with board(folder) as address:
                cold.append(page_times(browser, address))
                warm.append(page_times(browser, address))
            say(f"round {number + 1}: cold {cold[-1]}, warm {warm[-1]}")
        for number in range(rounds):
            kinds = ["pages", "answers"] if number % 2 else ["answers", "pages"]
            turns = ["none", kinds[0], "none", kinds[1], "none"]
            seen = stretches(browser, turns, settle_s=settle_s, lasts_s=lasts_s, home=folder)
            for place in (1, 3):
                found[turns[place]].append(seen[place])
                beside[turns[place]].append((seen[place - 1].reports_per_s + seen[place + 1].reports_per_s) / 2)
            say(f"round {number + 1}: {', '.join(f'{kind} {one}' for kind, one in zip(turns, seen, strict=True))}")
    names = ("first paint", "the best value stands in the page", "the curves are drawn")
    times = [
        [f"{name}, s", *(spread([each[place] for each in times]).shown(2) for times in (cold, warm))]
        for place, name in enumerate(names)
    ]
    cores = os.cpu_count() or 1
    rows = [["no page", spread([*beside["pages"], *beside["answers"]]).shown(0), "", "", ""]]
    for kind, name in (
        ("pages", "three pages in Chromium"),
        ("answers", "their answers, each second, drawn by nobody"),
    ):
        those = found[kind]
        boards, browsers = ([getattr(one, part) for one in those] for part in ("board_cores", "browser_cores"))
        taken = [100 * (ours + theirs) / cores for ours, theirs in zip(boards, browsers, strict=True)]
        rates = [one.reports_per_s for one in those]
        rows.append(
            [
                name,
                f"{spread(rates).shown(0)}; {ratio_of_neighbours(beside[kind], rates)}",
                spread(boards).shown(3),
                spread(browsers).shown(3) if kind == "pages" else "",
                spread(taken).shown(2),
            ]
        )
    tables = [
        table([f"{num_trials:,} trials, {num_trials * 50:,} reports", "cold", "warm"], times),
        table(
            [
                "2 workers report flat out",
                "reports a second; of none",
                "board, cores",
                "Chromium, cores",
                "of all CPU time, %",
            ],
            rows,
        ),
    ]
    finish(
        "board",
        tables,
        {"cold": cold, "warm": warm, "none": beside, **{k: [asdict(one) for one in v] for k, v in found.items()}},
        facts=facts,
    )


if __name__ == "__main__":
    main()
