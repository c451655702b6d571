"""Pages of the board in a real Chromium, of recorded searches and of a running search with `Tuner(board=True)`.

Skipped without Chromium: `apt install chromium`, which `.ci/run` does.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import psutil
import pytest
from recorded_search import RecordedSearch

from fanwise.board.experiments import Home
from fanwise.board.serving import open_board
from fanwise.board.with_uvicorn import Server
from fanwise.testing import within
from fanwise.tune.experiment import Experiment
from fanwise.tune.record.event_file import read_events
from fanwise.tune.record.log import Record
from fanwise.tune.record.overview import read_search

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

SEARCH = """
import sys, time
from fanwise.tune import StoppingCriterion, Tuner, report, uniform

def train(x):
    print(f"begun with {x}", flush=True)
    for step in range(100_000):
        if step % 20 == 0:
            print(f"step {step} of <b>many</b>", flush=True)
        report(error=x + 1 / (step + 1))
        time.sleep(0.05)

if __name__ == "__main__":
    stop = StoppingCriterion(max_wallclock_time=600)
    space = {"x": uniform(0, 1)}
    Tuner(train, space, metric="error", stop=stop, n_workers=2, name="live", searcher="random", board=True).run()
"""
ATTACK = "<b>bold</b><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"


@dataclass(frozen=True, slots=True)
class Live:
    """A running search with the address of its board."""

    home: Path
    address: str
    process: "subprocess.Popen[str]"

    def pid_of(self, trial_id: int) -> int:
        ready = (event for event in read_events(self.home / "live") if event.kind == "ready")
        return next(int(event.body["pid"]) for event in ready if event.trial_id == trial_id)

    def status(self, trial_id: int) -> str:
        history = read_search(self.home / "live").search
        return history.status_of(history.trials[trial_id]) if trial_id in history.trials else "none"

    def num_trials(self) -> int:
        return len(read_search(self.home / "live").search.trials)


@pytest.fixture(scope="module")
def driver() -> Iterator["Playwright"]:
    """The process that drives browsers."""
    with playwright.sync_playwright() as driver:
        yield driver


@pytest.fixture
def chromium(driver: "Playwright") -> Iterator["Browser"]:
    """A browser per test, because a browser keeps the processes of pages that it has shown."""
    # The sandbox of Chromium is not for root, as whom containers run tests; all pages here are ours.
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    try:
        assert browser_processes(), "processes of this run are recognized"
        yield browser
    finally:
        browser.close()
        within(30.0, lambda: not browser_processes(), "all processes of the browser have ended")


def browser_processes() -> list[psutil.Process]:
    """Return the processes of the browsers of this run. Under load, the last ones end after `close`."""
    processes = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if "chrom" in process.info["name"] and process.environ().get("TMPDIR") == tempfile.gettempdir():
                processes.append(process)
    return processes


@pytest.fixture
def page(chromium: "Browser") -> Iterator["Page"]:
    """A new tab. The test fails if a script fails, or if something is loaded from another host."""
    context = chromium.new_context()
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{error}"))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: wrong.append(request.url) if "//127.0.0.1:" not in request.url else None)
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A search with `board=True`, in a process of its own."""
    (tmp_path / "search.py").write_text(SEARCH)
    env = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with (
        (tmp_path / "search.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "search.py"],
            cwd=tmp_path,
            env={**env, "FANWISE_HOME": str(tmp_path / "home")},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        log_file = tmp_path / "search.log"
        try:
            match = within(
                60.0, lambda: re.search(r"^board: (\S+)$", log_file.read_text(), re.MULTILINE), "the address"
            )
            yield Live(tmp_path / "home", match[1], process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_search_is_watched_and_controlled_in_its_page(live: Live, page: "Page") -> None:
    page.goto(live.address)
    playwright.expect(page.locator("#state")).to_have_text("running", timeout=30_000)
    line = page.locator("#incumbent .scatterlayer path.js-line").first
    line.wait_for(state="attached", timeout=30_000)
    before = line.get_attribute("d")
    within(30.0, lambda: line.get_attribute("d") != before, "the curve moves")
    playwright.expect(page.locator("#best pre")).to_contain_text("'x': ")

    page.get_by_role("tab", name="Trials").click()
    page.get_by_role("link", name="1", exact=True).click()
    playwright.expect(page.locator("#output")).to_contain_text("begun with 0.", timeout=30_000)
    output = page.locator("#output").inner_text()
    within(30.0, lambda: page.locator("#output").inner_text().startswith(f"{output}\nstep "), "the output grows")
    assert "of <b>many</b>" in output
    pid = live.pid_of(1)
    os.kill(pid, 0)

    page.get_by_role("button", name="Stop the trial").click()
    page.get_by_role("button", name="Cancel").click()
    assert live.status(1) == "InProgress", "a canceled command has no effect"
    page.get_by_role("button", name="Stop the trial").click()
    page.get_by_role("button", name="Stop it").click()
    playwright.expect(page.locator("#state")).to_have_text("stopped", timeout=30_000)
    within(30.0, lambda: not Path(f"/proc/{pid}").exists(), "its process has ended")

    page.get_by_role("link", name="live").click()
    page.get_by_role("button", name="Enqueue a trial").click()
    page.get_by_label("configuration").fill('{"x": 0.125}')
    page.get_by_role("button", name="Enqueue it").click()
    playwright.expect(page.locator("#message")).to_contain_text("the next new trial uses x=0.125", timeout=30_000)

    page.get_by_label("workers", exact=True).fill("1")
    page.get_by_role("button", name="Set", exact=True).click()
    playwright.expect(page.locator("#message")).to_contain_text("at most 1 trial at a time", timeout=30_000)
    playwright.expect(page.locator("#budget")).to_contain_text("workers1utilization", timeout=30_000)

    page.get_by_role("button", name="End the search").click()
    page.get_by_role("button", name="End it").click()
    assert live.process.wait(60.0) == 0


def test_the_board_ends_with_a_killed_tuner(live: Live, page: "Page") -> None:
    page.goto(live.address)
    playwright.expect(page.locator("#state")).to_have_text("running", timeout=30_000)
    page.wait_for_function("() => window.Plotly")  # otherwise the page reports that it cannot load it
    live.process.kill()
    live.process.wait(30.0)
    url = urlsplit(live.address)

    def is_closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((url.hostname, url.port)) != 0

    within(30.0, is_closed, "nothing listens at the address")


def wait_for_importances(page: "Page") -> None:
    """Wait until no thread computes importances any more."""
    playwright.expect(page.locator("#importance-note")).to_contain_text("predicted and actual ranks", timeout=60_000)


@contextmanager
def board_of(home: Path) -> Iterator[str]:
    """Run a board in a thread and yield its address."""
    opened = open_board(home, port=0)
    server = Server(Home(home), opened.guard)
    thread = threading.Thread(target=server.serve, args=(opened.listener,), name="board")
    thread.start()
    try:
        yield opened.address
    finally:
        server.end()
        thread.join()
        opened.listener.close()


def write_attack(home: Path) -> None:
    """A search in which every text is markup."""
    meta = {
        "name": ATTACK,
        "objective": ATTACK,
        "metric": ATTACK,
        "mode": "min",
        "objectives": [[ATTACK, "min"], ["size", "max"]],
        "n_workers": 1,
        "seed": 1,
        "stop": {"max_num_trials_started": 20},
        "space": {ATTACK: {"domain": "choice", "categories": [ATTACK, "b"]}},
    }
    reason = {"kind": ATTACK, "text": ATTACK, "traceback": ATTACK, "last_output": ATTACK}
    with Record.create(home / "attack", meta) as record:
        search = RecordedSearch(record.append)
        for trial_id in range(12):
            search.start(trial_id, trial_id, {ATTACK: ATTACK if trial_id % 2 else "b"})
            search.ready(trial_id + 0.1, trial_id)
            search.report(
                trial_id + 0.5,
                trial_id,
                1,
                {ATTACK: 1.0 / (trial_id + 1), "size": 1.0, "note": ATTACK},
                decision="STOP",
            )
            if trial_id == 3:
                search.end(trial_id + 0.6, trial_id, "Failed", 0.5, reason=reason)
            else:
                search.end(trial_id + 0.6, trial_id, "Stopped", 0.5)
            search.free(trial_id + 0.6, trial_id)
        search.finish(20.0, ATTACK)
        record.commit()
    (home / "attack" / "output").mkdir()
    (home / "attack" / "output" / "3.out").write_text(ATTACK)


def test_markup_in_any_text_stays_text_on_every_page(tmp_path: Path, page: "Page") -> None:
    write_attack(tmp_path)
    with board_of(tmp_path) as address:
        page.goto(address)
        playwright.expect(page.locator("#rows a")).to_have_text(ATTACK)
        page.locator("#rows a").click()
        playwright.expect(page.locator("h1")).to_have_text(ATTACK)
        for tab in ("Workers", "Rungs", "Trials", "Hyperparameters", "Front", "Curves"):
            page.get_by_role("tab", name=tab).click()
            chart = page.locator("[role=tabpanel]:not([hidden]) .main-svg").first
            (page.locator("#trials-rows tr").first if tab == "Trials" else chart).wait_for(timeout=30_000)
            if tab == "Rungs":
                playwright.expect(page.locator("#rungs .ytitle")).to_have_text(ATTACK)
            if tab == "Hyperparameters":
                wait_for_importances(page)
        page.goto(urljoin(address, "/experiments/attack/trials/3"))
        playwright.expect(page.locator("#output")).to_have_text(ATTACK)
        playwright.expect(page.locator("#failed-text")).to_have_text(f"{ATTACK}: {ATTACK}")
        page.locator("#curve .main-svg").first.wait_for()
        assert "taken" not in (page.title(), page.evaluate("document.title"))
        assert page.locator("img, main script").count() == 0


@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_report_opens_from_disk_without_a_network(
    tmp_path: Path, chromium: "Browser", scheme: str, width: int
) -> None:
    write_attack(tmp_path)
    Experiment(tmp_path / "attack").report(tmp_path / "report.html")
    context = chromium.new_context(offline=True, color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{tmp_path}/report.html")
    playwright.expect(page.locator("h1")).to_contain_text(ATTACK)
    assert page.locator("svg").count() >= 4 and page.locator("script, img").count() == 0
    assert page.locator("tbody tr").count() == 12
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 19, 23)"}[scheme]
    context.close()


def test_tabs_follow_the_arrow_keys_and_the_list_its_filter(tmp_path: Path, page: "Page") -> None:
    write_attack(tmp_path)
    with board_of(tmp_path) as address:
        page.goto(address)
        page.locator("#rows a").wait_for()
        page.get_by_role("searchbox", name="filter").fill("nothing")
        playwright.expect(page.locator("#rows a")).to_have_count(0)
        page.goto(urljoin(address, "/experiments/attack"))
        page.get_by_role("tab", name="Curves").focus()
        page.keyboard.press("ArrowRight")
        playwright.expect(page.get_by_role("tab", name="Workers")).to_be_focused()
        playwright.expect(page.locator("#panel-workers")).to_be_visible()
        page.keyboard.press("ArrowLeft")
        playwright.expect(page.locator("#panel-curves")).to_be_visible()


def test_a_table_is_sorted_and_a_dialog_answered_by_keyboard(live: Live, page: "Page") -> None:
    page.goto(live.address)
    page.get_by_role("tab", name="Trials").click()
    header = page.get_by_role("button", name="x", exact=True)
    header.focus()
    for direction in ("ascending", "descending"):
        page.keyboard.press("Enter")
        column = page.locator("#trials-head th", has=page.locator("[data-key='config.x']"))
        playwright.expect(column).to_have_attribute("aria-sort", direction, timeout=30_000)
        playwright.expect(page.locator("[data-key='config.x']")).to_be_focused()
    page.get_by_role("button", name="End the search").focus()
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    playwright.expect(page.get_by_role("button", name="End the search")).to_be_focused()
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    playwright.expect(page.locator("#ask-yes")).to_be_focused()
    page.keyboard.press("Enter")
    assert live.process.wait(60.0) == 0


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_its_screen(tmp_path: Path, chromium: "Browser", width: int) -> None:
    write_attack(tmp_path)
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / os.fsdecode(b"\xff") / "events.jsonl").touch()
    with board_of(tmp_path) as address:
        context = chromium.new_context(viewport={"width": width, "height": 740})
        page = context.new_page()
        page.goto(address)
        page.locator("#rows a").wait_for()
        paths = [
            "",
            *(
                f"experiments/attack#{tab}"
                for tab in ("curves", "workers", "rungs", "trials", "hyperparameters", "front")
            ),
        ]
        for path in [*paths, "experiments/attack/trials/3"]:
            page.goto("about:blank")
            page.goto(urljoin(address, f"/{path}"))
            page.locator("#rows a, #best pre, #config dd").first.wait_for()
            if path.endswith("#hyperparameters"):
                wait_for_importances(page)
            if "#" in path:
                tab = page.locator("[role=tab][aria-selected=true]").bounding_box()
                assert tab is not None and tab["x"] >= 0 and tab["x"] + tab["width"] <= width, path
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        context.close()
