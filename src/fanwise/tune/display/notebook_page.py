"""A search as HTML, for notebooks: the table of trials and the counts, as a pure function of a snapshot.

Names, values and reasons come from users and trials: all of them are escaped, and nothing in them can be markup.
"""

from html import escape

from ..record.snapshot import MAX_ROWS, SearchSnapshot
from .table import best_line, choose_live, counts_line, hidden_lines, live_columns, starred

_COLOURS = {
    "Completed": "#2a7f3f",
    "InProgress": "#1f6feb",
    "Stopped": "#9a6700",
    "Failed": "#c0392b",
    "Lost": "#c0392b",
}
_CELL = "padding: 0 0.6em; text-align: right; white-space: nowrap"


def search_page(snapshot: SearchSnapshot, state: str = "", *, max_rows: int = MAX_ROWS) -> str:
    """Return the search's name and state, a table with one row per trial (the best in bold), and the counts.

    Args:
        state: a word or line to show after the name.
        max_rows: maximum number of trials; the best, the running and the latest ones are shown.
    """
    shown = choose_live(snapshot, max_rows)
    best_id = starred(snapshot)
    columns = [column for _, column in live_columns(snapshot, shown)]
    head = "".join(f'<th style="{_CELL}">{escape(column.head)}</th>' for column in columns)
    rows = []
    for number, row in enumerate(shown):
        style = f"color: {_COLOURS.get(row.status, 'inherit')}"
        style += "; font-weight: bold" if row.trial_id == best_id else ""
        cells = "".join(f'<td style="{_CELL}">{escape(column.cells[number])}</td>' for column in columns)
        rows.append(f'<tr style="{style}">{cells}</tr>')
    total = max(len(snapshot.rows), snapshot.total, snapshot.running + snapshot.finished)
    below = [*hidden_lines(len(shown), total), counts_line(snapshot), best_line(snapshot)]
    title = f"<b>{escape(snapshot.name)}</b>" + (f" {escape(state)}" if state else "")
    lines = "".join(f"<div>{escape(line)}</div>" for line in below)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="fanwise-search"><div>{title}</div>{table}{lines}</div>'
