"""The tables of the terminal: the form of the book, pandas' way with numbers, and a live view that always fits."""

import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fanwise.tune.display.table import final_block, footer, live_table, status_block, status_table
from fanwise.tune.record.snapshot import SearchSnapshot, TrialRow

CONFIG = ["learning_rate", "batch_size", "max_epochs"]
VALUES = ["epoch", "validation_error"]


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
        limit_s=720.0,
        utilization=0.987,
    )


def live_text(snap: SearchSnapshot, width: int = 80, height: int = 24) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(live_table(snap, width=width, height=height))
    return capture.get()


def test_the_status_table_has_the_form_of_the_book() -> None:
    assert status_table(ROWS, CONFIG, VALUES).splitlines() == [
        " trial_id     status  iter  learning_rate  batch_size  max_epochs  epoch  validation_error  worker-time",
        "        0  Completed    10       0.100000         128          10     10          0.258109   108.366785",
        "        1    Stopped     3       0.013712          47          10      3          0.901200    41.000000",
        "        2 InProgress     -       0.521200          33          10      -                 -            -",
    ]


FLOATS = st.one_of(st.floats(-1e9, 1e9), st.sampled_from([0.0, 1e-9, 1e7, 0.5, 123456.789, float("inf")]))
COLUMNS = st.one_of(
    st.lists(FLOATS | st.none(), min_size=3, max_size=3),
    st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.text("abcxyz_", min_size=1, max_size=12), min_size=3, max_size=3),
)


@given(COLUMNS, COLUMNS)
def test_the_status_table_is_what_pandas_would_print(config: list[object], values: list[object]) -> None:
    rows = [TrialRow(i, "Completed", 10 * i, {"c": config[i]}, {"value": values[i]}, 1.5 * i) for i in range(3)]
    frame = pd.DataFrame(
        {
            "trial_id": [0, 1, 2],
            "status": ["Completed"] * 3,
            "iter": [0, 10, 20],
            "c": config,
            "value": values,
            "worker-time": [0.0, 1.5, 3.0],
        }
    )
    for name in ("c", "value"):
        if frame[name].isna().all():
            frame[name] = frame[name].astype(float)
    assert status_table(rows, ["c"], ["value"]) == frame.to_string(index=False, na_rep="-")


def test_reported_nan_is_told_apart_from_a_missing_value() -> None:
    lines = status_table([row(0, error=float("nan")), row(1, epoch=None)], [], ["validation_error"]).splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["nan", "-"]


def test_numbers_of_numpy_are_shown_like_pythons_own() -> None:
    ours = row(0, lr=np.float32(0.5), batch_size=np.int64(128))
    assert status_table([ours], CONFIG, VALUES) == status_table([row(0, lr=0.5)], CONFIG, VALUES)


def test_numbers_and_words_may_share_a_column() -> None:
    lines = status_table([row(0, lr=0.1), row(1, lr="auto"), row(2, lr=None)], ["learning_rate"], []).splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["0.1", "auto", "-"]


def test_an_empty_table_has_only_its_head() -> None:
    assert status_table([], CONFIG, VALUES).split()[:3] == ["trial_id", "status", "iter"]
    assert len(status_table([], CONFIG, VALUES).splitlines()) == 1


def test_all_of_very_many_trials_are_shown() -> None:
    """It took minutes when each cell looked for the width of its whole column."""
    rows = [TrialRow(number, "Completed", 1, {"x": number}, {"loss": 0.5}, 1.0) for number in range(20_000)]
    lines = status_table(rows, ["x"], ["loss"], max_rows=len(rows)).splitlines()
    assert len(lines) == 20_001 and lines[-1].split() == ["19999", "Completed", "1", "19999", "0.5", "1.0"]


def test_beyond_fifty_rows_running_and_latest_trials_are_shown_and_the_rest_is_counted() -> None:
    rows = [row(i, "InProgress" if i in (3, 70) else "Completed") for i in range(80)]
    lines = status_table(rows, CONFIG, VALUES, keep=[5]).splitlines()
    assert [int(line.split()[0]) for line in lines[1:-1]] == [3, 5, *range(32, 80)]
    assert lines[-1] == "(30 more trials are not shown)"


def test_trials_that_the_caller_left_out_are_counted_too() -> None:
    assert status_table([row(7)], CONFIG, VALUES, total=2).splitlines()[-1] == "(1 more trial is not shown)"


def test_text_of_users_stays_in_its_cell() -> None:
    lines = status_table([row(0, lr="a\nb\x1b[31mred"), row(1, lr="x" * 500)], ["learning_rate"], []).splitlines()
    assert len(lines) == 3
    assert r"a\nb\x1b[31mred" in lines[1]
    assert max(map(len, lines)) < 120


def test_wide_characters_keep_the_columns_in_line() -> None:
    lines = status_table([row(0, lr="\u5b66\u7fd2"), row(1, lr="abcd")], ["learning_rate"], []).splitlines()
    assert len(lines[1]) + 2 == len(lines[2])


def test_the_footer_has_the_form_of_the_book() -> None:
    shown = replace(snapshot(), running=2, finished=5, completed=5, elapsed_s=436.55)
    assert footer(shown) == "2 trials running, 5 finished (5 until the end), 436.55s wallclock-time"
    assert footer(replace(shown, paused=3)).startswith("2 trials running, 3 paused, 5 finished ")
    assert footer(replace(shown, running=0, lost=2)).startswith("2 trials lost with the tuner, 5 finished ")


def test_the_final_block_has_the_form_of_the_book() -> None:
    lines = final_block(replace(snapshot(), best=(0.13777, 4))).splitlines()
    assert lines[:2] == ["--------------------", "Resource summary (last result is reported):"]
    assert lines[2:6] == status_table(ROWS, CONFIG, VALUES).splitlines()
    assert lines[6:] == [
        "1 trials running, 2 finished (1 until the end), 436.55s wallclock-time",
        "",
        "validation_error: best 0.13777 for trial-id 4",
        "--------------------",
    ]


def test_the_final_block_says_when_nothing_was_reported() -> None:
    assert "validation_error: no trial reported it" in final_block(replace(snapshot(), best=None)).splitlines()


def test_the_status_block_keeps_the_best_trial_among_many() -> None:
    block = status_block(replace(snapshot([row(i) for i in range(200)]), best=(0.1, 3)))
    assert any(line.split()[0] == "3" for line in block.splitlines())


def test_the_live_view_shows_running_trials_first_then_the_latest() -> None:
    rows = [row(0), row(1, "InProgress"), row(2, "Failed"), row(3), row(4, "InProgress")]
    text = live_text(snapshot(rows))
    shown = [line.replace("*", "").split()[:2] for line in text.splitlines() if "InProgress" in line or " 10" in line]
    assert [int(number) for number, _ in shown if number.isdigit()] == [1, 4, 3, 2, 0]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("height", [12, 24, 50])
def test_the_live_view_fits_the_terminal(width: int, height: int) -> None:
    rows = [row(i, "InProgress" if i % 3 == 0 else "Completed", lr=i / 7, batch_size=i) for i in range(100)]
    lines = live_text(snapshot(rows), width, height).splitlines()
    assert len(lines) <= height - 1
    assert all(len(line) <= width for line in lines)
    table = [line for line in lines if "InProgress" in line or "Completed" in line or "trial " in line]
    assert table
    assert not any("\u2026" in line for line in table if "best" not in line and "more" not in line)


def test_columns_that_do_not_fit_are_left_out_and_counted_constants_first() -> None:
    assert "max_epochs" in live_text(snapshot(), 120).splitlines()[2]
    narrow = live_text(snapshot(), 80)
    assert "max_epochs" not in narrow.splitlines()[2]
    assert "learning_rate" in narrow
    assert "validation_error" in narrow
    assert "time [s]" in narrow
    assert "(2 columns do not fit)" in narrow


def test_the_live_view_marks_the_best_trial_and_keeps_it_in_sight() -> None:
    rows = [row(i, "InProgress" if i > 50 else "Completed", lr=0.123, batch_size=64) for i in range(100)]
    text = live_text(replace(snapshot(rows), best=(0.111, 7)), 100, 14)
    assert any(line.strip().startswith("* 7") for line in text.splitlines())
    assert "best validation_error 0.111 (trial 7): learning_rate 0.123, batch_size 64, max_epochs 10" in text


def test_the_live_view_tells_progress_counts_and_utilization() -> None:
    text = live_text(snapshot())
    assert "436.6 of 720 s" in text
    assert "1 running, 2 finished (1 until the end), workers 98.7 % busy" in text
    unlimited = live_text(replace(snapshot(), limit_s=None, utilization=None, failed=1))
    assert " of " not in unlimited
    assert "436.6 s" in unlimited
    assert "1 running, 2 finished (1 until the end, 1 failed)" in unlimited
    assert "busy" not in unlimited


def test_the_bar_grows_with_the_time() -> None:
    def filled(elapsed_s: float) -> int:
        console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
        with console.capture() as capture:
            console.print(live_table(replace(snapshot(), elapsed_s=elapsed_s)))
        bar = next(line for line in capture.get().splitlines() if " of 720 s" in line)
        return bar.partition("\u2578")[0].count("\u2501") if "\u2578" in bar else bar.count("\u2501")

    assert filled(0.0) < filled(200.0) < filled(700.0)
    assert filled(720.0) == filled(800.0)


def test_before_the_first_report_the_live_view_says_so() -> None:
    assert "no validation_error reported yet" in live_text(replace(snapshot([]), best=None))


def test_markup_in_names_and_configurations_is_shown_as_it_is() -> None:
    rows = [row(0, lr="[bold]x[/bold]"), row(1, lr="[/]")]
    snap = replace(snapshot(rows), name="[red]name[/red]", metric="[link=x]m", value_names=["[link=x]m"])
    text = live_text(snap, 120)
    for shown in ("[red]name[/red]", "[bold]x[/bold]", "[/]", "[link=x]m"):
        assert shown in text


def test_escape_sequences_of_users_never_reach_the_terminal() -> None:
    snap = replace(snapshot([row(0, lr="\x1b[2J")]), name="\x1b]0;title\x07", metric="\x1b[H")
    for text in (live_text(snap, 120), status_block(snap), final_block(snap)):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_importing_the_tables_loads_neither_rich_nor_pandas() -> None:
    code = """
import sys
import fanwise.tune.display.table as table
row = table.TrialRow(0, "Completed", 1, {"a": 1.5}, {"b": 2}, 3.0)
table.status_table([row], ["a"], ["b"])
assert not {"rich", "pandas", "numpy", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
