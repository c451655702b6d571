"""Draws the figures in docs/img: `make pictures ARGS="NAME ..."`; without a name all, in 15 minutes.

An example runs unchanged in an empty folder. Its output is printed, and its figures are copied. The pages quote that
output; tests/examples checks that an example still prints such lines. `board` is a screenshot of the board of a running
search, and needs Chromium. `plots` are the figures of the guide to plots. docs/img/searchers.png is drawn by
benchmarks/searchers.py.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "img"

# example -> its figure -> the picture of the documents
FIGURES = {
    "async_random_search": {
        "async-random-search/workers.png": "book/async-workers.png",
        "async-random-search/incumbent.png": "book/async-incumbent.png",
        "async-random-search/learning-curves-asynchronous.png": "book/async-curves.png",
    },
    "compare_searchers": {"compare-searchers.png": "book/compare-searchers.png"},
    "own_searcher": {"own-searcher.png": "book/own-searcher.png"},
    "sequential_search": {"incumbent.png": "book/sequential.png"},
    "successive_halving": {"successive-halving.png": "book/successive-halving.png"},
    "asha": {"asha-learning-curves.png": "book/asha.png", "asha-incumbents.png": "book/asha-incumbents.png"},
    "rnn_parameter_server": {},
    "rl_cartpole": {},
    "rl_cartpole_batched": {},
}

# A formula in place of a network, so that the figures do not depend on the load of the machine.
TRAIN = """
import math, random, time
from fanwise.plot import save_figure, workers
from fanwise.tune import ASHA, FIFO, StoppingCriterion, Tuner, lograndint, loguniform, report, uniform

def train(learning_rate, batch_size, width, dropout, max_epochs):
    distance = abs(math.log10(learning_rate) + 1.2)
    floor = 0.03 + 0.08 * distance + 0.1 * abs(dropout - 0.3) + 0.5 / width
    for epoch in range(1, max_epochs + 1):
        time.sleep(1.5 * batch_size ** -0.5)
        progress = 1 - math.exp(-epoch / (5 + 8 * distance))
        report(epoch=epoch, validation_error=0.9 + (floor - 0.9) * progress + 0.01 * random.random())

space = {"learning_rate": loguniform(1e-2, 1), "batch_size": lograndint(8, 128), "width": lograndint(32, 512)}
space |= {"dropout": uniform(0, 0.8), "max_epochs": 30}
asha = {"metric": "validation_error", "resource_attr": "epoch", "max_resource_attr": "max_epochs", "random_seed": 3}
"""
BOARD = """
stop = StoppingCriterion(max_wallclock_time=120)
Tuner(train, space, ASHA(**asha, grace_period=6), stop, n_workers=2, name="dropout-mlp", board=True).run()
"""
PLOTS = """
stop = StoppingCriterion(max_num_trials_started=36)
asha = ASHA(**asha, grace_period=2, reduction_factor=3, type="promotion")
rungs = Tuner(train, space | {"batch_size": 128, "max_epochs": 18}, asha, stop, n_workers=2, name="perceptron").run()
save_figure(rungs.plot_rungs(), "rungs.png")

def search(label, asynchronous):
    fifo = FIFO(metric="validation_error", random_seed=4)
    stop = StoppingCriterion(max_wallclock_time=40)
    return Tuner(train, space, fifo, stop, n_workers=2, name=label, asynchronous=asynchronous).run().search_data()

searches = {label: search(label, label == "asynchronous") for label in ("synchronous", "asynchronous")}
save_figure(workers(*searches.values(), labels=list(searches)), "workers-compared.png")
"""


def run_example(name: str) -> None:
    run_program(ROOT / "examples" / f"{name}.py", FIGURES[name])


def draw_plots() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "search.py"
        script.write_text(TRAIN + PLOTS)
        run_program(script, {name: name for name in ("rungs.png", "workers-compared.png")})


def run_program(program: Path, figures: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FANWISE_HOME": f"{folder}/home"}
        print(f"== {program.stem}", flush=True)
        subprocess.run([sys.executable, str(program)], cwd=folder, env=environment, check=True)
        for figure, picture in figures.items():
            shutil.copy(Path(folder) / figure, IMAGES / picture)


def draw_board(seconds: float = 75.0) -> None:
    """Draw the page of an experiment that has run for this time."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory(prefix="fanwise-") as folder, sync_playwright() as driver:
        script = Path(folder) / "search.py"
        script.write_text(TRAIN + BOARD)
        environment = {**os.environ, "FANWISE_HOME": f"{folder}/home", "PYTHONUNBUFFERED": "1"}
        search = subprocess.Popen(
            [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert search.stdout is not None
            address = next(found[1] for line in search.stdout if (found := re.match(r"board: (\S+)$", line)))
            time.sleep(seconds)
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 1190}, color_scheme="light")
            page.goto(address)
            page.locator(".scatterlayer path.js-line").first.wait_for(state="attached", timeout=30_000)
            time.sleep(2.0)  # wait for the animation of the figures
            page.screenshot(path=IMAGES / "board.png")
            browser.close()
        finally:
            search.kill()
            search.wait()


if __name__ == "__main__":
    others = {"board": draw_board, "plots": draw_plots}
    for name in sys.argv[1:] or [*FIGURES, *others]:
        others[name]() if name in others else run_example(name)
