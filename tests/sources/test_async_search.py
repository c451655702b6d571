"""The book's sections on asynchronous search, 19.3 in both editions and 19.5: as they are printed.

Edition a has lost the ends of its lines, and is edition b but for white space. 19.5 is 19.3 with another scheduler. The
epochs are fewer than the book's, and ten trials take the place of twelve minutes.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import run_program

FASHION = Path(__file__).resolve().parents[3] / "shared" / "data" / "fashion-mnist-900"
SHIMS = Path(__file__).resolve().parent / "shims"

LAYOUT = [
    ("an empty line that the site has put into a function", "as d2l\n\n  model", "as d2l\n  model"),
    ("what a notebook shows", "Text(0, 0.5, 'objective function')", ""),
]
SMALLER = [
    ("trials, however long they take here", "(max_wallclock_time=max_wallclock_time)", "(max_num_trials_started=10)"),
    ("epochs", '"max_epochs": 10', '"max_epochs": 3'),
]
# What 19.5 changes, and where the page of the newer edition looks for the back end.
ASHA = [
    ("the scheduler", "import RandomSearch", "import ASHA"),
    (
        "the scheduler",
        "scheduler = RandomSearch(\n  config_space,",
        'scheduler = ASHA(\n  config_space,\n  max_resource_attr="max_epochs",\n  resource_attr="epoch",\n'
        "  grace_period=1,\n  reduction_factor=2,",
    ),
    ("the place", "python_backend import", "python_backend.python_backend import"),
]
LAST = """\
print("seen:", {name: len(results[name]) == len(results) for name in ("trial_id", "st_tuner_time", "validation_error")})
print("drawn:", len(d2l.plt.gca().lines), "of", len(tuning_experiment.trials))
print("figures:", [d2l.plt.figure(number).axes[0].get_ylabel() for number in d2l.plt.get_fignums()])
"""

TABLE = r"^ *trial_id +status +iter +learning_rate +batch_size +max_epochs +epoch +validation_error +worker-time$"
FOOTER = r"^\d+ trials running, \d+ finished \(\d+ until the end\), \d+\.\d\ds wallclock-time$"

Read = Callable[..., list[str]]


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def check_printed(printed: str) -> None:
    """The tables of the book, the best, and that the rest of the program found what it reads."""
    assert re.search(r"^ +0 +(?:Completed|Stopped) +[1-3] +0\.1\d* +128 +3 +[1-3] +0\.\d+ +\d+\.\d+$", printed, re.M)
    assert re.search(TABLE, printed, re.M)
    assert re.search(FOOTER, printed, re.M)
    assert re.search(r"^-{20}\nResource summary \(last result is reported\):\n", printed, re.M)
    assert re.search(r"^validation_error: best 0\.\d+ for trial-id \d+\n-{20}$", printed, re.M)
    assert "seen: {'trial_id': True, 'st_tuner_time': True, 'validation_error': True}\n" in printed
    drawn = re.search(r"^drawn: (\d+) of (\d+)$", printed, re.M)
    assert drawn and drawn[1] == drawn[2] == "10"
    assert "figures: ['validation_error', 'objective function']\n" in printed


@pytest.fixture(autouse=True)
def _images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_DATA", str(FASHION))


def test_both_editions_are_the_same_program(read_document: Read, document_text: Callable[[str], str]) -> None:
    cells = read_document("d2l-19.3-edition-b", LAYOUT)
    assert len(cells) == 16
    other = squeezed(document_text("d2l-19.3-edition-a"))
    assert [cell for cell in cells if squeezed(cell) not in other] == []


@pytest.mark.parametrize("edits", [[], ASHA], ids=["19.3", "19.5"])
def test_the_program_runs_unchanged(
    edits: list[tuple[str, str, str]],
    read_document: Read,
    program_of: Callable[..., str],
    tmp_path: Path,
) -> None:
    cells = read_document("d2l-19.3-edition-b", [*LAYOUT, *SMALLER, *edits])
    (tmp_path / "program.py").write_text(program_of([*cells, LAST]))
    (tmp_path / "d2l").symlink_to(SHIMS / "d2l")
    done = run_program(["-m", "fanwise.tune.syne_tune", "program.py"], folder=tmp_path)
    assert done.status == 0, done.said
    check_printed(done.out)
    log = r"^INFO:fanwise\.tune\.events:trial 0 scheduled: learning_rate=0\.1, batch_size=128, max_epochs=3$"
    assert re.search(log, done.err, re.M), "the program asks for what Syne Tune logs as INFO"
