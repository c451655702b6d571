"""The table of a search as text and HTML, with the columns and the wording of Syne Tune."""

import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fanwise.tune.display.table import best_line, footer, html_of, search_view, summary_view, text_of, usage_line
from fanwise.tune.record.trials import SearchSnapshot, TrialRow

CONFIG = ["learning_rate", "batch_size", "max_epochs"]
VALUES = ["epoch", "validation_error"]
EVIL = "<b>&[red]x[/red]\x1b[2J\nline"


def row(
    trial_id: int,
    status: str = "Completed",
    *,
    lr: object = 0.1,
    batch_size: object = 128,
    epoch: int | None = 10,
    error: object = 0.25,
    time_s: float | None = 108.366785,
) -> TrialRow:
    config = {"learning_rate": lr, "batch_size": batch_size, "max_epochs": 10}
    values: Mapping[str, object] = {} if epoch is None else {"epoch": epoch, "validation_error": error}
    return TrialRow(trial_id, status, epoch, config, values, time_s)


ROWS = [
    row(0, lr=0.1, error=0.258109),
    row(1, "Stopped", lr=0.013712, batch_size=47, epoch=3, error=0.9012, time_s=41.0),
    row(2, "InProgress", lr=0.5212, batch_size=33, epoch=None, time_s=None),
]


def snapshot(rows: Sequence[TrialRow] = ROWS) -> SearchSnapshot:
    return SearchSnapshot(
        name="lenet",
        metric="validation_error",
        rows=rows,
        config_names=CONFIG,
        value_names=VALUES,
        running=sum(r.status == "InProgress" for r in rows),
        finished=sum(r.status != "InProgress" for r in rows),
        completed=sum(r.status == "Completed" for r in rows),
        failed=sum(r.status == "Failed" for r in rows),
        best=(0.258109, 0),
        elapsed_s=436.55,
    )


def cells(snap: SearchSnapshot, **options: int) -> list[list[str]]:
    """Return the cells of each row of the table, without the header."""
    lines = text_of(search_view(snap, **options)).splitlines()[1:]  # type: ignore[arg-type]
    return [line.split() for line in lines if line.split()[0].isdigit() and "trials running" not in line]


def test_summary_has_the_form_of_syne_tune() -> None:
    view = summary_view(replace(snapshot(), best=(0.13777, 4)))
    assert text_of(view).splitlines() == [
        "--------------------",
        "Resource summary (last result is reported):",
        "trial_id      status  iter  learning_rate  batch_size  max_epochs  epoch  validation_error  worker-time",
        "       0   Completed    10            0.1         128          10     10          0.258109       108.37",
        "       1     Stopped     3       0.013712          47          10      3            0.9012        41.00",
        "       2  InProgress     -         0.5212          33          10      -                 -            -",
        "1 trials running, 2 finished (1 until the end), 436.55s wallclock-time",
        "validation_error: best 0.13777 for trial-id 4",
        "--------------------",
    ]


def test_footer_has_the_wording_of_syne_tune() -> None:
    shown = replace(snapshot(), running=2, finished=5, completed=5)
    assert footer(shown) == "2 trials running, 5 finished (5 until the end), 436.55s wallclock-time"
    assert footer(replace(shown, completed=3, failed=1)) == (
        "2 trials running, 5 finished (3 until the end, 1 failed), 436.55s wallclock-time"
    )
    assert usage_line(replace(shown, limit_s=720.0, utilization=0.987)) == "workers 98.7 % busy, time limit 720s"
    assert usage_line(replace(shown, limit_s=None, utilization=None)) == ""
    assert footer(replace(shown, paused=3)).startswith("2 trials running, 3 paused, 5 finished ")
    assert footer(replace(shown, running=0, lost=2)).startswith("2 trials lost when the tuner was killed, 5 finished ")


def test_best_line_has_the_value_and_the_trial() -> None:
    assert best_line(snapshot()) == "validation_error: best 0.258109 for trial-id 0"
    assert best_line(replace(snapshot(), best=None)) == "validation_error: no trial has reported it"


def test_nan_differs_from_a_missing_value_and_numpy_floats_are_rounded() -> None:
    rows = [row(0, error=float("nan"), lr=np.float32(0.5)), row(1, epoch=None, lr="auto")]
    first, second = cells(snapshot(rows))
    assert (first[7], second[7]) == ("nan", "-")
    assert (first[3], second[3]) == ("0.5", "auto")


def test_table_of_many_trials_has_the_best_the_running_and_the_latest_and_counts_the_others() -> None:
    rows = [row(i, "InProgress" if i in (3, 70) else "Completed") for i in range(80)]
    snap = replace(snapshot(rows), best=(0.1, 5), total=90)
    assert [int(line[0]) for line in cells(snap)] == [3, 5, *range(32, 80)]
    assert "(40 more trials not shown)" in text_of(search_view(snap)).splitlines()
    assert [int(line[0]) for line in cells(snap, max_rows=4)] == [3, 5, 70, 79]
    assert "(1 more trial not shown)" in text_of(search_view(replace(snapshot(), total=4)))
    assert [len(cells(snap, max_rows=80)), len(cells(snapshot([])))] == [80, 0]


@pytest.mark.parametrize("width", [70, 80, 120, 200])
def test_columns_that_do_not_fit_are_left_out_beginning_with_constants(width: int) -> None:
    rows = [row(i, "InProgress" if i % 3 == 0 else "Completed", lr=i / 7, batch_size=i) for i in range(100)]
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(search_view(replace(snapshot(rows), limit_s=720.0), title="lenet", max_rows=15, width=width))
    lines = capture.get().splitlines()
    assert len(lines) <= 23 and all(len(line) <= width for line in lines)
    assert "\u2026" not in capture.get()
    assert ("max_epochs" in lines[1]) == (width >= 120)
    assert "validation_error" in lines[1] and "learning_rate" in lines[1]
    assert ("more columns not shown)" in capture.get()) == (width < 120)


def test_best_row_is_bold_unless_it_violates_constraints() -> None:
    html = html_of(search_view(snapshot(), title="lenet"))
    bold = ["font-weight: bold" in line for line in html.splitlines()[:5]]
    assert bold == [True, True, True, False, False]  # the title, the header, the best row
    assert "color: #008000" in html
    infeasible = html_of(search_view(replace(snapshot(), violated="epoch <= 5 (by 5)"), title="lenet"))
    assert infeasible.count("font-weight: bold") == 2
    assert "validation_error: no trial meets all constraints; the nearest is 0.258109 for trial-id 0" in infeasible


def test_markup_and_control_characters_of_users_are_escaped_and_long_texts_shortened() -> None:
    snap = replace(
        snapshot([row(0, lr=EVIL), row(1, lr="x" * 500), row(2, lr="\u5b66\u7fd2")]),
        name=EVIL,
        metric=EVIL,
        config_names=["learning_rate", EVIL],
        value_names=[EVIL],
    )
    text, html = (write(search_view(snap, title=EVIL)) for write in (text_of, html_of))
    assert "\x1b" not in text and len(text.splitlines()) == 7
    assert text.count(r"<b>&[red]x[/red]\x1b[2J\nline") == text.count("<b>") > 3
    assert max(map(len, text.splitlines()[1:5])) < 160
    assert "<b>" not in html and html.count("&lt;b&gt;&amp;[red]x[/red]") > 3


def test_import_loads_neither_rich_nor_pandas() -> None:
    code = """
import sys
import fanwise.tune.display.table
assert not {"rich", "pandas", "numpy", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
