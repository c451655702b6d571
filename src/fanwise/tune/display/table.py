"""The table of a search, drawn by rich for terminals, logs, notebooks and `fanwise tune show`.

Control characters in the names and texts of users are shown as escapes, and nothing is interpreted as markup. rich is
imported on first use, because a search that prints nothing does not need it.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ...base.text import counted, printable_line
from ..record.trials import MAX_ROWS, SearchSnapshot, TrialRow

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

TakeSnapshot: TypeAlias = Callable[[], SearchSnapshot]

_MAX_CELL_CHARS: Final = 40
_GAP: Final = 2  # spaces between columns
_RULE: Final = "-" * 20
_STYLES: Final = {"Completed": "green", "InProgress": "cyan", "Stopped": "yellow", "Failed": "red", "Lost": "red"}


class _Column(NamedTuple):
    """A column of a table. If not all columns fit, the highest ranks are left out first, and rank 0 never."""

    rank: int
    width: int
    cells: list[str]  # the name and the values, right-aligned


def search_view(
    snapshot: SearchSnapshot, *, title: str = "", max_rows: int = MAX_ROWS, width: int | None = None
) -> "RenderableType":
    """Return a table with one row per trial in the order of ids, the best one in bold, and a few lines below it.

    Args:
        title: a line above the table.
        max_rows: maximum number of rows. The best, the running and the latest trials have priority.
        width: maximum width in characters. A line below the table counts the columns that do not fit. None: no limit.
    """
    from rich.console import Group
    from rich.text import Text

    best_id = None if snapshot.best is None else snapshot.best[1]
    ranked = sorted(snapshot.rows, key=lambda row: (row.trial_id != best_id, row.status != "InProgress", -row.trial_id))
    rows = sorted(ranked[:max_rows], key=lambda row: row.trial_id)
    all_columns = _columns(snapshot, rows)
    columns = all_columns if width is None else _columns_that_fit(all_columns, width)
    # Lines of text, because a `rich.table.Table` takes eight times as long.
    cells_by_row = list(zip(*(column.cells for column in columns), strict=True))
    table = [Text((" " * _GAP).join(cells), no_wrap=True, overflow="ellipsis") for cells in cells_by_row]
    table[0].stylize("bold")
    for row, line, (trial_id, status, *_) in zip(rows, table[1:], cells_by_row[1:], strict=True):
        status_end = len(trial_id) + _GAP + len(status)
        line.stylize(_STYLES.get(row.status, ""), status_end - len(status.lstrip()), status_end)
        line.stylize("bold" if row.trial_id == best_id and not snapshot.violated else "")
    hidden = {"trial": max(len(snapshot.rows), snapshot.total) - len(rows), "column": len(all_columns) - len(columns)}
    notes = [f"{number} more {noun}{'s' if number > 1 else ''}" for noun, number in hidden.items() if number > 0]
    lines = [f"({' and '.join(notes)} not shown)"] if notes else []
    lines += filter(None, [usage_line(snapshot), footer(snapshot), best_line(snapshot)])
    header = [Text(printable_line(title), style="bold")] if title else []
    return Group(*header, *table, *map(Text, lines))


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


def usage_line(snapshot: SearchSnapshot) -> str:
    """Return a line with the utilization of the workers and the time limit, or "" if there is neither."""
    parts = []
    if snapshot.utilization is not None:
        parts.append(f"workers {100 * snapshot.utilization:.1f} % busy")
    if snapshot.limit_s:
        parts.append(f"time limit {snapshot.limit_s:g}s")
    return ", ".join(parts)


def best_line(snapshot: SearchSnapshot) -> str:
    """Return a line with the best value and its trial. If no trial is feasible, this is the least infeasible one."""
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
    """Return a line with the names in a scheduler's description (`Scheduler.describe`), or "" if there are none.

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
        _column(0, "trial_id", [str(row.trial_id) for row in rows]),
        _column(0, "status", [_printable(row.status) for row in rows]),
        _column(1, "iter", [_cell(row.iter) for row in rows]),
    ]
    for name in snapshot.config_names:
        cells = [_cell(row.config.get(name)) for row in rows]
        is_constant = len(cells) > 1 and len(set(cells)) == 1
        columns.append(_column(5 if is_constant else 2, _printable(name), cells))
    for name in snapshot.value_names:
        cells = [_cell(row.values.get(name)) for row in rows]
        columns.append(_column(0 if name == snapshot.metric else 4, _printable(name), cells))
    times = ["-" if row.worker_time_s is None else f"{row.worker_time_s:.2f}" for row in rows]
    return [*columns, _column(3, "worker-time", times)]


def _column(rank: int, name: str, values: list[str]) -> _Column:
    from rich.cells import cell_len

    width = max(map(cell_len, (name, *values)))
    return _Column(rank, width, [" " * (width - cell_len(cell)) + cell for cell in (name, *values)])


def _columns_that_fit(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Return the columns that fit into the width. Columns of rank 0 are returned even if they do not fit."""
    remaining = list(columns)
    while sum(column.width + _GAP for column in remaining) - _GAP > width:
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
