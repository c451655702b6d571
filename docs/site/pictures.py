"""Makes pictures of the documents again: `python docs/site/pictures.py [NAME ...]`; without a name all, in 15 minutes.

Run each example unchanged in an empty folder, print its output, and copy its figures into docs/img. The
pages quote that output; tests/examples checks that an example still prints such lines. `board` is
the board of a running search in Chromium, driven by playwright.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
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
    "workers_1_2_4": {"workers-1-2-4.png": "book/workers-1-2-4.png"},
    "own_searcher": {"own-searcher.png": "book/own-searcher.png"},
    "sequential_search": {"incumbent.png": "book/sequential.png"},
    "successive_halving": {"successive-halving.png": "book/successive-halving.png"},
    "asha": {"asha-learning-curves.png": "book/asha.png", "asha-incumbents.png": "book/asha-incumbents.png"},
    "rnn_parameter_server": {},
    "rl_cartpole": {},
    "rl_cartpole_batched": {},
}

# A formula in the place of a network, so that the picture needs no calm machine: error curves of networks look like it.
SEARCH = """
import math, random, time
from fanwise.tune import ASHA, StoppingCriterion, Tuner, lograndint, loguniform, report, uniform

def train(learning_rate, batch_size, width, dropout, max_epochs):
    away = abs(math.log10(learning_rate) + 1.2)
    floor = 0.03 + 0.08 * away + 0.1 * abs(dropout - 0.3) + 0.5 / width
    for epoch in range(1, max_epochs + 1):
        time.sleep(1.5 * batch_size ** -0.5)
        learnt = math.exp(-epoch / (5 + 8 * away))
        report(epoch=epoch, validation_error=floor + (0.9 - floor) * learnt + 0.01 * random.random())

space = {"learning_rate": loguniform(1e-2, 1), "batch_size": lograndint(8, 128), "width": lograndint(32, 512)}
space |= {"dropout": uniform(0, 0.8), "max_epochs": 30}
asha = ASHA(metric="validation_error", resource_attr="epoch", max_resource_attr="max_epochs", grace_period=6)
stop = StoppingCriterion(max_wallclock_time=120)
Tuner(train, space, asha, stop, n_workers=2, name="dropout-mlp", board=True).run()
"""


def run_example(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FANWISE_HOME": f"{folder}/home"}
        command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
        print(f"== {name}", flush=True)
        subprocess.run(command, cwd=folder, env=environment, check=True)
        for figure, picture in FIGURES[name].items():
            (IMAGES / picture).parent.mkdir(exist_ok=True)
            shutil.copy(Path(folder) / figure, IMAGES / picture)


def board_after(seconds: float = 75.0) -> None:
    """The page of an experiment, after it has run for so long."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory(prefix="fanwise-") as folder, sync_playwright() as driver:
        script = Path(folder) / "search.py"
        script.write_text(SEARCH)
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
    for name in sys.argv[1:] or [*FIGURES, "board"]:
        board_after() if name == "board" else run_example(name)
