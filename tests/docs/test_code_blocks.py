"""Every python block of the README and the docs runs as it stands, alone, in an empty folder and a fresh process.

It has loaded foreign libraries already: torch, all engines, or what most of the others use. So have the processes that
it starts: see `LoadedInterpreter`. In fresh interpreters `make release-check` runs README and quickstart.
A fragment that cannot run is no python block: it is marked `text`. There is no mark to leave a block out.
Design notes are not run.
"""

import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from program_runs import LoadedInterpreter

ROOT = Path(__file__).resolve().parents[2]

# The opening fence with what follows it, the text, and a closing fence that is as far to the right.
BLOCK = re.compile(r"^([ ]*)```([^\n`]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)

USES_TORCH = re.compile(r"\b(?:torch|fanwise\.rpc|fanwise\.tensor)\b")
USES_OTHER_ENGINES = re.compile(r"\b(?:jax|tensorflow)\b")
STARTS_PROCESSES = re.compile(r"\b(?:spawn|Pool|Tuner|run)\b")


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Return the line, the label and the text without indentation of each fenced block."""
    found = []
    for match in BLOCK.finditer(text):
        indent = len(match[1])
        code = "\n".join(line[indent:] for line in match[3].split("\n"))
        found.append((text.count("\n", 0, match.start()) + 1, match[2].strip(), code))
    return found


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.is_file() and (ROOT / "docs" / "design") not in page.parents]


def labelled(language: str) -> list[tuple[str, str, str]]:
    return [
        (f"{page.relative_to(ROOT)}:{line}", label, code)
        for page in pages()
        for line, label, code in blocks(page.read_text())
        if label.lower().startswith(language)
    ]


@pytest.fixture(scope="module")
def usual_loaded() -> Iterator[LoadedInterpreter]:
    """An interpreter that has imported the libraries of a search without torch."""
    with LoadedInterpreter("cloudpickle", "matplotlib.pyplot", "pandas", "scipy.stats", "yaml") as loaded:
        yield loaded


@pytest.fixture
def run_alone(
    tmp_path: Path,
    usual_loaded: LoadedInterpreter,
    torch_loaded: LoadedInterpreter,
    engines_loaded: LoadedInterpreter,
) -> Callable[[str], tuple[int, str]]:
    """Run a script with this text. Returns its exit status and output. Its processes end with it."""

    def run(code: str) -> tuple[int, str]:
        script = tmp_path / "block.py"
        script.write_text(code)
        loaded = usual_loaded
        if USES_TORCH.search(code):
            loaded = engines_loaded if USES_OTHER_ENGINES.search(code) else torch_loaded
        forks = bool(STARTS_PROCESSES.search(code))
        done = loaded.run(script, folder=tmp_path, forks=forks)
        return done.status, done.said

    return run


@pytest.mark.parametrize(("place", "code"), [(place, code) for place, _, code in labelled("python")])
def test_the_block_runs_as_it_stands(place: str, code: str, run_alone: Callable[[str], tuple[int, str]]) -> None:
    status, output = run_alone(code)
    assert status == 0, f"the block at {place} failed:\n{output}"


def test_no_python_block_is_left_out() -> None:
    odd = [f"{place}: {label}" for place, label, _ in labelled("py") if label != "python"]
    assert odd == [], "a block is either exactly `python`, and runs, or it is `text`"


def test_there_is_a_readme() -> None:
    assert (ROOT / "README.md").is_file()


def test_blocks_are_found_with_their_lines() -> None:
    page = "# A\n```python\nx = 1\n\ny = 2\n```\n- item\n  ```python no-run\n  z = 3\n  ```\n```text\nno\n```\n"
    assert blocks(page) == [
        (2, "python", "x = 1\n\ny = 2\n"),
        (8, "python no-run", "z = 3\n"),
        (11, "text", "no\n"),
    ]


@pytest.mark.parametrize("first", ["x = 1", "import torch"])
def test_a_block_that_fails_is_seen(first: str, run_alone: Callable[[str], tuple[int, str]]) -> None:
    status, output = run_alone(f"{first}\nassert 1 == 2, 'no'\n")
    assert status == 1
    assert "AssertionError: no" in output


@pytest.mark.parametrize("first", ["import sys", "import torch"])
def test_a_block_finds_its_experiments_in_its_own_folder(
    first: str, run_alone: Callable[[str], tuple[int, str]], tmp_path: Path
) -> None:
    status, output = run_alone(f"{first}, os\nprint(os.environ['FANWISE_HOME'], os.getcwd())")
    assert (status, output.split()) == (0, [f"{tmp_path}/home", str(tmp_path)])


# -- fanwise.tensor on every engine ------------------------------------------------------------------------------------

ABOUT_TENSOR = ("docs/guides/tensor.md", "docs/book/2.1.md")
THE_BOOK = "docs/book/2.1.md"
ENGINES = ("torch", "jax", "tensorflow", "numpy")

# One process an engine; each block has a namespace of its own in it.
RUN_THEM = """
import contextlib, io, json, traceback
said = []
for place, code in json.load(open("blocks.json")):
    error, out = "", io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, place, "exec"), {"__name__": "block"})
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        traceback.print_exc()
    said.append([error, out.getvalue()])
json.dump(said, open("said.json", "w"))
"""


def tensor_blocks() -> list[tuple[str, str]]:
    return [
        (f"{page}:{line}", code)
        for page in ABOUT_TENSOR
        for line, label, code in blocks((ROOT / page).read_text())
        if label == "python" and "fanwise.tensor" in code
    ]


def skip_without(*libraries: str) -> None:
    """Unless they are installed. Not importorskip: they are for the program, and set the environment when loaded."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")


def needs_gradients(code: str) -> bool:
    return "value_and_grad(" in code


def printed_below(page: str) -> dict[str, str]:
    """Return the `text` block that follows each Python block of a page: its output."""
    found = blocks((ROOT / page).read_text())
    return {
        f"{page}:{line}": below
        for (line, label, _), (_, after, below) in itertools.pairwise(found)
        if label == "python" and after == "text"
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_every_block_about_tensor_runs_on_every_engine_and_prints_what_the_page_shows(
    engine: str, tmp_path: Path, engines_loaded: LoadedInterpreter
) -> None:
    skip_without(engine, "jax", "tensorflow")  # the page of the book shows lines of both
    wanted = tensor_blocks()
    assert {place.partition(":")[0] for place, _ in wanted} == set(ABOUT_TENSOR)
    (tmp_path / "blocks.json").write_text(json.dumps(wanted))
    script = tmp_path / "run_them.py"
    script.write_text(RUN_THEM)
    done = engines_loaded.run(script, folder=tmp_path, environment={"FANWISE_ENGINE": engine})
    assert done.status == 0, done.said
    shown = {place: out for page in ABOUT_TENSOR for place, out in printed_below(page).items()}
    assert all(place in shown for place, _ in wanted if place.startswith(THE_BOOK))
    for (place, code), (error, out) in zip(wanted, json.loads((tmp_path / "said.json").read_text()), strict=True):
        if engine == "numpy" and needs_gradients(code):
            said = r"TypeError: numpy has no gradients; torch, jax, tensorflow have\."
            assert re.match(said, error), (place, error)
        else:
            assert error == "", (place, done.said)
            assert out == shown.get(place, out), place
