"""Searches in a notebook: a display updated in place, the kernel's stop button, searches in the background.

A separate program starts a real kernel and executes the cells.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from program_runs import run_program

if importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None:
    pytest.skip("needs nbclient and ipykernel", allow_module_level=True)

SETTING_UP = """
from fanwise.tune import *

def objective(x):
    for step in range(3):
        report(loss=x / (step + 1))

def for_ever(x):
    while True:
        report(loss=x)

def tuner(name, objective=objective, **options):
    stop = StoppingCriterion(max_num_trials_started=4)
    return Tuner(objective, {"x": uniform(0, 1)}, FIFO(metric="loss"), stop, n_workers=2, name=name, **options)
"""

# Executes the cells and returns their visible output.
READER = """
import json, sys, nbformat
from nbclient import NotebookClient
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in json.load(open("cells.json"))])
NotebookClient(book, timeout=90, kernel_name="python3").execute()
print("CELLS", json.dumps([cell.outputs for cell in book.cells]))
"""

# Executes one cell and presses the stop button when trials report.
PRESSER = """
import json, sys
from jupyter_client.manager import start_new_kernel
from fanwise.base.errors import RecordError
from fanwise.testing import within
from fanwise.tune import load_experiment

def reports():
    try:
        return len(load_experiment("pressed").results) > 0
    except RecordError:
        return False

manager, client = start_new_kernel()
said, results = [], {}
try:
    for text in json.load(open("cells.json")):
        number = client.execute(text)
        if "pressed" in text:
            within(60, reports, "trials report")
            manager.interrupt_kernel()
        while True:
            message = client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != number:
                continue
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])
            if message["msg_type"] == "error":
                said.append(message["content"]["ename"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
print("CELLS", json.dumps(said))
"""


def outputs_of(program: str, cells: list[str], folder: Path) -> Any:  # Any: JSON
    (folder / "cells.json").write_text(json.dumps([SETTING_UP, *cells]))
    (folder / "reader.py").write_text(program)
    done = run_program(["reader.py"], folder=folder)
    lines = [line for line in done.out.splitlines() if line.startswith("CELLS ")]
    assert done.status == 0 and len(lines) == 1, done.said
    return json.loads(lines[0].removeprefix("CELLS "))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:  # Any: JSON
    """Return the outputs of the cells of one notebook, because a kernel takes seconds to start."""
    cells = ["experiment = tuner('nb').run()", "experiment"]
    cells += ["tuner('last').run()"]
    cells += ["running = tuner('behind').run(block=False)", "len(running.wait(60).trials)"]
    shown: list[Any] = outputs_of(READER, cells, tmp_path_factory.mktemp("notebook"))
    return shown[1:]


def test_notebook_shows_a_search_in_one_display(read: list[Any]) -> None:
    outputs, shown, _, _, _ = read
    assert outputs[0]["output_type"] == "display_data"
    page, text = outputs[0]["data"]["text/html"], outputs[0]["data"]["text/plain"]
    assert page.count(">Completed<") == 4 and "4 finished (4 until the end)" in page
    assert text.count("Completed") == 4 and "4 finished (4 until the end)" in text
    lines = "".join(output["text"] for output in outputs[1:])
    assert lines.startswith("experiment nb: asynchronous search with 2 workers")
    assert lines.endswith("\nthe search ended: max_num_trials_started=4 reached\n")
    (result,) = shown
    assert result["output_type"] == "execute_result"
    assert result["data"]["text/plain"].startswith("Experiment('nb'")
    assert result["data"]["text/html"].count(">Completed<") == 4
    assert "reached (searcher RandomSearcher, scheduler FIFO)" in result["data"]["text/html"]


def test_experiment_on_the_last_line_of_a_cell_is_shown_once(read: list[Any]) -> None:
    pages = [output["data"] for output in read[2] if "data" in output]
    assert ["text/html" in page for page in pages] == [True, False]
    assert pages[1]["text/plain"].startswith("Experiment('last'")


def test_background_search_is_shown_below_the_cell_that_started_it(read: list[Any]) -> None:
    _, _, _, outputs, waited = read
    assert outputs[0]["output_type"] == "display_data"
    assert outputs[0]["data"]["text/html"].count(">Completed<") == 4
    assert waited[-1]["data"]["text/plain"] == "4"


def test_stop_button_ends_the_search_and_not_the_kernel(tmp_path: Path) -> None:
    cells = ["tuner('pressed', for_ever).run()\nprint('the cell continues')", "print(load_experiment('pressed').state)"]
    cells[1] = "print(load_experiment(''.join(['pre', 'ssed'])).end_reason)"
    cell_outputs = outputs_of(PRESSER, cells, tmp_path)
    assert "SearchInterrupted" in cell_outputs
    assert cell_outputs[-1] == "interrupted\n"
    assert "the cell continues\n" not in cell_outputs
