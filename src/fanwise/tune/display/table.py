"""The tables of a search in the terminal, as pure functions of a snapshot.

    SearchSnapshot --status_block--> text for logs: the table of the book and its footer
                   --final_block---> text: the resource summary at the end
                   --live_table----> rich renderable, bounded to the size of the terminal

`status_table` prints what pandas' `to_string(index=False)` would, without pandas, whose import takes longer than a
short search; a test compares the two. Columns of floats share one number of decimals, missing values are `-`.

Knows nothing of tuners, records, terminals or time. Names and strings come from the user: characters that could steer
a terminal are shown as escapes, and nothing of them is read as markup. rich is imported on first use.
"""

import math
import numbers
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.text import printable_line
from ..record.snapshot import MAX_ROWS, SearchSnapshot, TrialRow

if TYPE_CHECKING:
    from rich.console import RenderableType

MISSING = "-"
_MAX_TEXT = 40  # characters of one cell
_RULE = "-" * 20
_RUNNING = "InProgress"
_STYLES = {"Completed": "green", "InProgress": "cyan", "Stopped": "yellow", "Failed": "red", "Lost": "red"}
_LIVE_DECIMALS = 5
_LIVE_OVERHEAD = 10  # lines without trials: title, head, three rules, hidden trials, progress, counts, best, cursor


@dataclass(frozen=True, slots=True)
class _Column:
    """One column as text. Numeric heads have a leading space, as in pandas."""

    head: str
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(_width, [self.head, *self.cells]))


# ---- text


def status_table(
    rows: Sequence[TrialRow],
    config_names: Sequence[str],
    value_names: Sequence[str],
    *,
    max_rows: int = MAX_ROWS,
    keep: Collection[int] = (),
    total: int | None = None,
) -> str:
    """The table of the book: a line a trial, in order of trial ids.

    Args:
        rows: the trials, in any order.
        config_names: columns of the configuration: hyperparameters first, then constants.
        value_names: columns of the reported values.
        max_rows: with more rows, the trials in `keep`, the running ones and then the latest are shown.
        keep: ids of trials to show in any case, such as the best.
        total: how many trials there are, if `rows` leaves some out.

    Example:
        >>> row = TrialRow(0, "Completed", 10, {"learning_rate": 0.1}, {"validation_error": 0.25}, 108.4)
        >>> print(status_table([row], ["learning_rate"], ["validation_error"]))
         trial_id    status  iter  learning_rate  validation_error  worker-time
                0 Completed    10            0.1              0.25        108.4
    """
    shown = _choose(rows, max_rows, keep)
    columns = [
        _column("trial_id", [row.trial_id for row in shown]),
        _column("status", [row.status for row in shown], text=True),
        _column("iter", [row.iter for row in shown]),
        *(_column(name, [row.config.get(name) for row in shown]) for name in config_names),
        *(_column(name, [row.values.get(name) for row in shown]) for name in value_names),
        _column("worker-time", [row.worker_time_s for row in shown]),
    ]
    padded = [_padded(column, column.width) for column in columns]
    lines = [" ".join(cells) for cells in zip(*padded, strict=True)]
    return "\n".join(lines + hidden_lines(len(shown), max(len(rows), total or 0)))


def _padded(column: _Column, width: int) -> list[str]:
    return [_pad(text, width) for text in (column.head, *column.cells)]


def footer(snapshot: SearchSnapshot) -> str:
    """The line below the table: '2 trials running, 5 finished (5 until the end), 436.55s wallclock-time'.

    Paused trials, and those that were lost with their tuner, are counted where there are any.
    """
    running = f"{snapshot.running} trials running"
    if snapshot.lost:
        running = f"{snapshot.lost} trial{'s' if snapshot.lost > 1 else ''} lost with the tuner"
    if snapshot.paused:
        running += f", {snapshot.paused} paused"
    finished = f"{snapshot.finished} finished ({snapshot.completed} until the end)"
    return f"{running}, {finished}, {snapshot.elapsed_s:.2f}s wallclock-time"


def status_block(snapshot: SearchSnapshot, *, max_rows: int = MAX_ROWS) -> str:
    """Table and footer, as they are printed at every interval."""
    keep = () if snapshot.best is None else (snapshot.best[1],)
    names = snapshot.config_names, snapshot.value_names
    table = status_table(snapshot.rows, *names, max_rows=max_rows, keep=keep, total=_total(snapshot))
    return f"{table}\n{footer(snapshot)}"


def _total(snapshot: SearchSnapshot) -> int:
    return snapshot.total or snapshot.running + snapshot.finished


def final_block(snapshot: SearchSnapshot, *, max_rows: int = MAX_ROWS) -> str:
    """The resource summary at the end of a search, in the form of the book."""
    if snapshot.best is None:
        best = f"{_printable(snapshot.metric)}: no trial reported it"
    else:
        value, trial_id = snapshot.best
        best = f"{_printable(snapshot.metric)}: best {value} for trial-id {trial_id}"
        if snapshot.constraints:
            best += f", among those that meet {printable_line(' and '.join(snapshot.constraints))}"
        if snapshot.violated:
            near = f"the nearest is {value} for trial-id {trial_id}"
            best = f"{_printable(snapshot.metric)}: no trial meets all constraints; {near}: {_violates(snapshot)}"
    head = "Resource summary (last result is reported):"
    return "\n".join([_RULE, head, status_block(snapshot, max_rows=max_rows), "", best, _RULE])


def _choose(rows: Sequence[TrialRow], max_rows: int, keep: Collection[int]) -> list[TrialRow]:
    """The `max_rows` rows that matter most, in order of trial ids."""
    ranked = sorted(rows, key=lambda r: (r.trial_id not in keep, r.status != _RUNNING, -r.trial_id))
    return sorted(ranked[:max_rows], key=lambda r: r.trial_id)


def hidden_lines(n_shown: int, n_trials: int) -> list[str]:
    n_hidden = n_trials - n_shown
    if n_hidden <= 0:
        return []
    return [f"({n_hidden} more trial{'s are' if n_hidden > 1 else ' is'} not shown)"]


# ---- cells


def _column(name: str, values: Sequence[object], *, text: bool = False, decimals: int = 6) -> _Column:
    """A column of numbers where all values that are there are numbers or truth values, else a column of text."""
    known = [value for value in values if value is not None]
    if text or not all(isinstance(value, numbers.Real) for value in known):
        return _Column(_printable(name), [_text(value) for value in values])
    if all(isinstance(value, numbers.Integral) for value in known):
        return _Column(f" {_printable(name)}", [_text(value) for value in values])
    floats = [float(value) if isinstance(value, numbers.Real) else None for value in values]
    return _Column(f" {_printable(name)}", _float_cells(floats, decimals))


def _float_cells(values: Sequence[float | None], decimals: int) -> list[str]:
    """Floats with one number of decimals, in the way of pandas.

    Trailing zeros that all share are dropped, down to one decimal. Numbers that would show as 0, or that are long and
    beyond a million, put the whole column into exponents.
    """
    sizes = [abs(value) for value in values if value is not None and not math.isnan(value)]
    fixed = _drop_shared_zeros([_float_text(value, f".{decimals}f") for value in values])
    too_small = any(0 < size < 10.0**-decimals for size in sizes)
    too_long = max(map(len, fixed)) > decimals + 6 and any(size > 1e6 for size in sizes)
    return [_float_text(value, f".{decimals}e") for value in values] if too_small or too_long else fixed


def _float_text(value: float | None, spec: str) -> str:
    return MISSING if value is None else format(value, spec)


def _drop_shared_zeros(cells: list[str]) -> list[str]:
    with_point = [cell for cell in cells if "." in cell]
    if not with_point:
        return cells
    n_zeros = min(len(cell) - len(cell.rstrip("0")) for cell in with_point)
    n_decimals = len(with_point[0].partition(".")[2])
    n_dropped = min(n_zeros, n_decimals - 1)
    return [cell[: len(cell) - n_dropped] if "." in cell else cell for cell in cells]


def _text(value: object) -> str:
    return MISSING if value is None else _printable(str(value))


def _printable(text: str) -> str:
    """Text in one line that cannot steer a terminal, cut to 40 characters."""
    shown = printable_line(text)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[: _MAX_TEXT - 3]}..."


def _width(text: str) -> int:
    """Terminal cells: wide East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _pad(text: str, width: int) -> str:
    return " " * (width - _width(text)) + text


# ---- the live table


def live_table(snapshot: SearchSnapshot, *, width: int = 80, height: int = 24) -> "RenderableType":
    """The live view of a search: a table of trials, a progress bar, the counts and the best configuration so far.

    It takes at most `height - 1` lines (but at least 10) of `width` columns: running trials come first, then the
    finished ones, the latest first. The best trial is marked with a star and keeps a line. Columns that do not fit are
    left out, constants first, and counted.

    Returns:
        A rich renderable, for `rich.live.Live.update` or `Console.print`.
    """
    from rich.console import Group
    from rich.text import Text

    shown = choose_live(snapshot, max(1, height - _LIVE_OVERHEAD))
    columns, n_left_out = _fit(live_columns(snapshot, shown), width)
    hidden = hidden_lines(len(shown), max(len(snapshot.rows), _total(snapshot)))
    if n_left_out:
        hidden.append(f"({n_left_out} column{'s do' if n_left_out > 1 else ' does'} not fit)")
    parts: list[RenderableType] = [
        Text(_printable(snapshot.name), style="bold", no_wrap=True, overflow="ellipsis"),
        _rich_table(columns, shown, starred(snapshot)),
    ]
    if hidden:
        parts.append(Text(" ".join(hidden), style="dim", no_wrap=True, overflow="ellipsis"))
    parts.append(_progress(snapshot, width))
    parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in (counts_line(snapshot), best_line(snapshot))]
    return Group(*parts)


def choose_live(snapshot: SearchSnapshot, max_rows: int) -> list[TrialRow]:
    best_id = None if snapshot.best is None else snapshot.best[1]
    ranked = sorted(snapshot.rows, key=lambda r: (r.trial_id != best_id, r.status != _RUNNING, -r.trial_id))[:max_rows]
    running = sorted((row for row in ranked if row.status == _RUNNING), key=lambda r: r.trial_id)
    return running + sorted((row for row in ranked if row.status != _RUNNING), key=lambda r: -r.trial_id)


def live_columns(snapshot: SearchSnapshot, shown: Sequence[TrialRow]) -> list[tuple[int, _Column]]:
    """Columns in order of display, each with its rank: the higher, the sooner it is left out."""

    def column(name: str, values: Sequence[object], *, text: bool = False) -> _Column:
        made = _column(name, values, text=text, decimals=_LIVE_DECIMALS)
        return _Column(made.head.strip(), made.cells)

    best_id = starred(snapshot)
    columns = [
        (0, column("trial", [f"{'* ' if row.trial_id == best_id else ''}{row.trial_id}" for row in shown], text=True)),
        (0, column("status", [row.status for row in shown], text=True)),
        (1, column("iter", [row.iter for row in shown])),
    ]
    for name in snapshot.config_names:
        values = [row.config.get(name) for row in shown]
        constant = len(shown) > 1 and all(value == values[0] for value in values)
        columns.append((5 if constant else 2, column(name, values)))
    for name in snapshot.value_names:
        columns.append((0 if name == snapshot.metric else 4, column(name, [row.values.get(name) for row in shown])))
    times_s = [None if row.worker_time_s is None else round(row.worker_time_s, 1) for row in shown]
    return [*columns, (3, column("time [s]", times_s))]


def _fit(columns: Sequence[tuple[int, _Column]], width: int) -> tuple[list[_Column], int]:
    """The most important columns that fit side by side, in order of display, and how many do not."""
    kept: set[int] = set()
    left = width
    for i in sorted(range(len(columns)), key=lambda i: (columns[i][0], i)):
        rank, column = columns[i]
        needed = column.width + 2
        if rank == 0 or needed <= left:
            kept.add(i)
            left -= needed
    return [columns[i][1] for i in sorted(kept)], len(columns) - len(kept)


def _rich_table(columns: Sequence[_Column], shown: Sequence[TrialRow], best_id: int | None) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.HORIZONTALS, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(Text(column.head), justify="right", no_wrap=True, overflow="ellipsis")
    for i, row in enumerate(shown):
        cells = [Text(column.cells[i]) for column in columns]
        cells[1].stylize(_STYLES.get(row.status, ""))
        table.add_row(*cells, style="bold" if row.trial_id == best_id else "")
    return table


def _progress(snapshot: SearchSnapshot, width: int) -> "RenderableType":
    """A bar for the wall-clock limit with the seconds beside it; without a limit only the seconds."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if not snapshot.limit_s:
        return Text(f"{snapshot.elapsed_s:.1f} s")
    seconds = f"{snapshot.elapsed_s:.1f} of {snapshot.limit_s:g} s"
    done_s = min(snapshot.elapsed_s, snapshot.limit_s)
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_row(ProgressBar(snapshot.limit_s, done_s, width=max(5, min(50, width - len(seconds) - 3))), Text(seconds))
    return line


def counts_line(snapshot: SearchSnapshot) -> str:
    """Return one line with the numbers of trials and the utilization of the workers."""
    line = f"{snapshot.running} running, "
    line += f"{snapshot.lost} lost, " if snapshot.lost else ""
    line += f"{snapshot.paused} paused, " if snapshot.paused else ""
    line += f"{snapshot.finished} finished ({snapshot.completed} until the end"
    line += f", {snapshot.failed} failed)" if snapshot.failed else ")"
    if snapshot.utilization is not None:
        line += f", workers {100 * snapshot.utilization:.1f} % busy"
    return line


def best_line(snapshot: SearchSnapshot) -> str:
    if snapshot.best is None:
        return f"no {_printable(snapshot.metric)} reported yet"
    value, trial_id = snapshot.best
    line = f"best {_printable(snapshot.metric)} {value:.5g} (trial {trial_id})"
    if snapshot.violated:
        line = f"nothing meets all constraints yet; the nearest: {line[5:]}, {_violates(snapshot)}"
    for row in snapshot.rows:
        if row.trial_id == trial_id:
            shown = [f"{_printable(name)} {_short(row.config.get(name))}" for name in snapshot.config_names]
            return f"{line}: {', '.join(shown)}" if shown else line
    return line


def _violates(snapshot: SearchSnapshot) -> str:
    return f"it violates {printable_line(snapshot.violated)}"


def starred(snapshot: SearchSnapshot) -> int | None:
    """The trial that is marked as the best; None: there is none, or it violates constraints."""
    return None if snapshot.best is None or snapshot.violated else snapshot.best[1]


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value)
