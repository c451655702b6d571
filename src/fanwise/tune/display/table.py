"""The table of a search, drawn by rich for terminals, logs, notebooks and `fanwise tune show`.

Control characters in the names and texts of users are shown as escapes, and nothing is interpreted as markup. rich is
imported on first use, because a search that prints nothing does not need it.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...base.text import counted, printable_line
from ..record.trials import MAX_ROWS, SearchSnapshot, TrialRow

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MAX_CELL_CHARS: Final = 40
_GAP: Final = 2  # spaces between columns
_RULE: Final = "-" * 20
_STYLES: Final = {"Completed": "green", "InProgress": "cyan", "Stopped": "yellow", "Failed": "red", "Lost": "red"}


class _Column(NamedTuple):
    """A column of a table. If not all columns fit, the highest ranks are left out first. Rank 0 is always shown."""

    rank: int
    name: str
    cells: list[str]


def search_view(
    snapshot: SearchSnapshot, *, title: str = "", max_rows: int = MAX_ROWS, width: int | None = None
) -> "RenderableType":
    """Return a table with one row per trial, and lines below it. Rows are in the order of ids, with the best in bold.

    Args:
        title: a line above the table.
        max_rows: maximum number of rows. The best, the running and the latest trials have priority.
        width: maximum width in characters. Columns that do not fit are left out and counted. None: show all columns.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    best_id = None if snapshot.best is None else snapshot.best[1]
    ranked = sorted(snapshot.rows, key=lambda row: (row.trial_id != best_id, row.status != "InProgress", -row.trial_id))
    rows = sorted(ranked[:max_rows], key=lambda row: row.trial_id)
    all_columns = _columns(snapshot, rows)
    columns = all_columns if width is None else _columns_that_fit(all_columns, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(Text(column.name, style="bold"), justify="right", no_wrap=True, overflow="ellipsis")
    for index, row in enumerate(rows):
        cells = [Text(column.cells[index]) for column in columns]
        cells[1].stylize(_STYLES.get(row.status, ""))
        table.add_row(*cells, style="bold" if row.trial_id == best_id and not snapshot.violated else "")
    hidden = {"trial": max(len(snapshot.rows), snapshot.total) - len(rows), "column": len(all_columns) - len(columns)}
    notes = [f"{number} more {noun}{'s' if number > 1 else ''}" for noun, number in hidden.items() if number > 0]
    lines = [f"({' and '.join(notes)} not shown)"] if notes else []
    lines += [*usage_lines(snapshot), footer(snapshot), best_line(snapshot)]
    header = [Text(printable_line(title), style="bold")] if title else []
    return Group(*header, table, *map(Text, lines))


def summary_view(snapshot: SearchSnapshot, *, max_rows: int = MAX_ROWS, width: int | None = None) -> "RenderableType":
    """Return the table at the end of a search, under Syne Tune's heading. Arguments as for `search_view`."""
    from rich.console import Group
    from rich.text import Text

    header = Text(f"{_RULE}\nResource summary (last result is reported):")
    return Group(header, search_view(snapshot, max_rows=max_rows, width=width), Text(_RULE))


def text_of(view: "RenderableType") -> str:
    """Return a view as plain text, without colors."""
    console = _console(color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get().rstrip("\n")


def html_of(view: "RenderableType") -> str:
    """Return a view as an HTML element with inline styles."""
    console = _console(record=True)
    console.print(view)
    return console.export_html(inline_styles=True, code_format='<pre class="fanwise-search">{code}</pre>')


def _console(**options: Any) -> "Console":
    """Return a console that prints to memory and is wide enough for any table."""
    from rich.console import Console

    return Console(file=io.StringIO(), width=10_000, force_jupyter=False, **options)


def footer(snapshot: SearchSnapshot) -> str:
    """Return the counts in Syne Tune's wording, in which trials "until the end" neither failed nor were stopped."""
    parts = [f"{snapshot.running} trials running"]
    if snapshot.lost:
        parts = [f"{counted(snapshot.lost, 'trial')} lost when the tuner was killed"]
    if snapshot.paused:
        parts.append(f"{snapshot.paused} paused")
    failed = f", {snapshot.failed} failed" if snapshot.failed else ""
    parts.append(f"{snapshot.finished} finished ({snapshot.completed} until the end{failed})")
    parts.append(f"{snapshot.elapsed_s:.2f}s wallclock-time")
    return ", ".join(parts)


def usage_lines(snapshot: SearchSnapshot) -> list[str]:
    """Return a line with the utilization of the workers and the time limit, or no line if both are unknown."""
    parts = []
    if snapshot.utilization is not None:
        parts.append(f"workers {100 * snapshot.utilization:.1f} % busy")
    if snapshot.limit_s:
        parts.append(f"time limit {snapshot.limit_s:g}s")
    return [", ".join(parts)] if parts else []


def best_line(snapshot: SearchSnapshot) -> str:
    """Return a line with the best value and its trial, or with the least infeasible value."""
    metric = _printable(snapshot.metric)
    if snapshot.best is None:
        return f"{metric}: no trial has reported it"
    value, trial_id = snapshot.best
    if snapshot.violated:
        line = f"{metric}: no trial meets all constraints; the nearest is {value} for trial-id {trial_id}"
        line += f", which violates {printable_line(snapshot.violated)}"
    else:
        line = f"{metric}: best {value} for trial-id {trial_id}"
        if snapshot.constraints:
            line += f", among those that meet {printable_line(' and '.join(snapshot.constraints))}"
    return line


def method_line(scheduler: Mapping[str, Any]) -> str:
    """Return the names of the searcher and scheduler, as far as the description of the scheduler contains them.

    >>> method_line({"name": "ASHA", "searcher": {"name": "OptunaSearcher", "sampler": "TPESampler"}})
    'searcher OptunaSearcher (TPESampler), scheduler ASHA'
    """
    searcher, parts = scheduler.get("searcher"), []
    if isinstance(searcher, Mapping) and searcher.get("name"):
        parts.append(f"searcher {searcher['name']}" + (f" ({searcher['sampler']})" if searcher.get("sampler") else ""))
    parts += [f"scheduler {scheduler['name']}"] if scheduler.get("name") else []
    return ", ".join(parts)


def _columns(snapshot: SearchSnapshot, rows: Sequence[TrialRow]) -> list[_Column]:
    columns = [
        _Column(0, "trial_id", [str(row.trial_id) for row in rows]),
        _Column(0, "status", [_printable(row.status) for row in rows]),
        _Column(1, "iter", [_cell(row.iter) for row in rows]),
    ]
    for name in snapshot.config_names:
        cells = [_cell(row.config.get(name)) for row in rows]
        columns.append(_Column(5 if len(cells) > 1 and len(set(cells)) == 1 else 2, _printable(name), cells))
    for name in snapshot.value_names:
        cells = [_cell(row.values.get(name)) for row in rows]
        columns.append(_Column(0 if name == snapshot.metric else 4, _printable(name), cells))
    times = ["-" if row.worker_time_s is None else f"{row.worker_time_s:.2f}" for row in rows]
    return [*columns, _Column(3, "worker-time", times)]


def _columns_that_fit(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Return the columns that fit into the width. Columns of rank 0 are returned even if they do not fit."""
    from rich.cells import cell_len

    remaining = list(columns)
    while sum(max(map(cell_len, (column.name, *column.cells))) + _GAP for column in remaining) - _GAP > width:
        column = max(reversed(remaining), key=lambda column: column.rank)
        if not column.rank:
            break
        remaining.remove(column)
    return remaining


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else _printable(str(value))


def _printable(text: str) -> str:
    """Return the text in one line without control characters, shortened to 40 characters."""
    shown = printable_line(text)
    return shown if len(shown) <= _MAX_CELL_CHARS else f"{shown[: _MAX_CELL_CHARS - 3]}..."
