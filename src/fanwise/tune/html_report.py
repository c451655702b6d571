"""The report of an experiment: one HTML file with figures and tables, which needs neither a server nor a network.

The file contains no scripts. Figures are SVG elements whose colors are CSS variables, so that they follow the light or
dark scheme of the reader's system. Thousands of points are embedded as images.
"""

import io
import json
import os
import pprint
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.atomic_file import atomic_file
from ..base.text import counted, printable, printable_line
from ..base.tracebacks import of_the_user
from .display.table import method_line
from .plot_data import figures_of
from .record.overview import SearchReader
from .record.state import SearchState
from .record.trials import Failure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_MAX_ROWS, _MAX_CELL_CHARS = 500, 100
_MAX_FAILURES = 20
_MAX_VECTOR_POINTS, _MIN_RASTERIZED_POINTS = 4_000, 100  # in figures with more points, large artists become images
_COLORS = {
    **dict.fromkeys(("#000000", "#222222"), "var(--ink)"),
    **dict.fromkeys(("#767676", "#a8a8a8"), "var(--soft)"),
    **dict.fromkeys(("#bdbdbd", "#c9c9c9"), "var(--idle)"),
    **dict.fromkeys(("#e6e6e6", "#dedede", "#eeeeee"), "var(--grid)"),
    "#ffffff": "var(--card)",
}
_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b1f24; --soft: #5b6570; --line: #d9dee4;
  --idle: #b9c0c8; --grid: #e3e7ec; --bad: #c4232c; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1317; --card: #171c22; --ink: #e4e8ec; --soft: #98a3ae;
  --line: #2c343d; --idle: #59636d; --grid: #2b333b; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1240px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 0 0 8px; }
p { margin: 4px 0 12px; } .soft { color: var(--soft); } .bad { color: var(--bad); }
main { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
section { min-width: 0; padding: 12px 14px; border: 1px solid var(--line); border-radius: 10px;
  background: var(--card); }
.wide { grid-column: 1 / -1; } .scroll { overflow-x: auto; } .rows { overflow: auto; max-height: 640px; }
.big { font-size: 26px; line-height: 1.25; }
svg { display: block; width: 100%; height: auto; min-width: 600px; }
svg text { fill: var(--ink); font-family: inherit !important; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 2px 14px; margin: 0; } dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; } dd, td { font-variant-numeric: tabular-nums; }
pre { margin: 8px 0; padding: 9px 11px; background: var(--page); border-radius: 7px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
table { border-collapse: collapse; width: 100%; font-size: 14px; } summary { cursor: pointer; }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
th { position: sticky; top: 0; color: var(--soft); background: var(--card); font-weight: 500; }
@media (max-width: 700px) { body { padding: 10px; } main { grid-template-columns: minmax(0, 1fr); } }
"""


def write_report(reader: SearchReader, path: str | os.PathLike[str]) -> None:
    """Write `Experiment.report`. An existing file is replaced atomically. Raises OSError."""
    text = "\n".join(_page(reader))
    with atomic_file(Path(path)) as partial_path:
        partial_path.write_text(text, encoding="utf-8")


def _page(reader: SearchReader) -> Iterator[str]:
    from matplotlib import rc_context

    history = reader.search
    reason = f" ({history.stop_reason})" if history.stop_reason else ""
    details = [method_line(history.meta.get("scheduler", {})), f"objective {history.meta.get('objective')}"]
    created = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(history.meta.get("created_s", 0.0)))
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield f"<title>{_text(history.name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f'<h1>{_text(history.name)} <span class="soft">{_text(reader.state + reason)}</span></h1>'
    yield f'<p class="soft">{_text(" - ".join(filter(None, [*details, f"started {created}"])))}</p>\n<main>'
    yield from _best(history)
    yield from _facts(reader)
    with rc_context({"font.size": 9.5}):
        figures, note = figures_of(history)
    for name, figure in figures.items():
        caption = f'<p class="soft">{_text(_remove_titles(figure))}</p>'
        heading = name.replace("-", " ").capitalize()
        yield from _section(heading, caption, f'<div class="scroll">{_svg(figure)}</div>')
    if note:
        yield from _section("Importance", f'<p class="soft">{_text(note)}</p>')
    yield from _section("Trials", *_trial_table(reader))
    failures = [(trial.trial_id, failure) for trial in history.trials.values() if (failure := trial.last.failure)]
    if failures:
        yield from _section("Failures", *_failures(failures))
    yield from _section("Environment", *_environment(history.meta))
    yield "</main>\n</body>\n</html>\n"


def _section(title: str, *parts: str, is_wide: bool = True) -> Iterator[str]:
    yield f"<section{' class=wide' if is_wide else ''}>\n<h2>{_text(title)}</h2>"
    yield from parts
    yield "</section>"


def _best(history: SearchState) -> Iterator[str]:
    best = history.best()
    if best is None:
        return (yield from _section("Best configuration", '<p class="soft">no report</p>', is_wide=False))
    goal = "smaller" if history.mode == "min" else "larger"
    where = f"{history.metric}, {goal} is better; trial {best.trial_id}, report {best.iter}"
    violated = f'<p class="bad">violates {_text(best.violated)}</p>' if best.violated else ""
    config = pprint.pformat(dict(best.config), sort_dicts=False, width=60)
    parts = (f'<div class="big">{best.value:.6g}</div>', f"<div>{_text(where)}</div>", violated, _pre(config))
    yield from _section("Best configuration", *parts, is_wide=False)


def _facts(reader: SearchReader) -> Iterator[str]:
    history, snapshot = reader.search, reader.snapshot()
    counts = {"running": snapshot.running, "paused": snapshot.paused, "lost": snapshot.lost}
    counts |= {status.lower(): number for status, number in history.num_ended.items()}
    facts = {
        "trials": f"{snapshot.total:,} ({', '.join(f'{n:,} {status}' for status, n in counts.items() if n)})",
        "reports": f"{len(history.reports):,}",
        "time": f"{snapshot.elapsed_s:,.1f} s",
        "workers": str(history.n_workers),
        "utilization": "" if snapshot.utilization is None else f"{100 * snapshot.utilization:.1f} %",
        "limits": ", ".join(f"{name}={limit}" for name, limit in history.stop.items() if limit is not None),
        "constraints": ", ".join(snapshot.constraints),
        "random seed": str(history.meta.get("seed")),
    }
    yield from _section("Search", _definitions({name: text for name, text in facts.items() if text}), is_wide=False)


def _remove_titles(figure: "Figure") -> str:
    """Remove the titles of a figure, and return their text."""
    titles = [figure.get_suptitle(), *(axes.get_title(loc="left") for axes in figure.axes)]
    for axes in figure.axes:
        axes.set_title("", loc="left")
    if figure.get_suptitle():
        figure.suptitle("")
    return "; ".join(filter(None, titles)).replace("\n", "; ").replace(r"\$", "$")


def _svg(figure: "Figure") -> str:
    from matplotlib import rc_context
    from matplotlib.collections import PathCollection

    figure.set_size_inches(11.0, figure.get_figheight())
    num_points = {artist: _num_points(artist) for artist in figure.findobj()}
    if sum(num_points.values()) > _MAX_VECTOR_POINTS:
        for artist, number in num_points.items():
            artist.set_rasterized(number > _MIN_RASTERIZED_POINTS)
            if number > _MAX_VECTOR_POINTS and isinstance(artist, PathCollection):
                artist.set_alpha(0.5)  # so that thousands of dots do not hide lines below them
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fanwise"}):
        figure.savefig(buffer, format="svg", dpi=150, transparent=True, metadata=no_metadata)
    svg = buffer.getvalue()
    head = r'<svg \1 xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img">'
    svg = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', head, svg[svg.index("<svg") :])
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    return re.sub(r'<text[^>]*>|style="[^"]*"', lambda match: _with_css_colors(match[0]), svg)


def _with_css_colors(markup: str) -> str:
    if markup.startswith("<text"):  # may lie on a box, whose color does not depend on the scheme, unless it is a note
        return markup.replace("#767676", "var(--soft)")
    return re.sub("#[0-9a-f]{6}", lambda color: _COLORS.get(color[0], color[0]), markup)


def _num_points(artist: "Artist") -> int:
    import numpy as np
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D

    if isinstance(artist, Collection):
        return max(len(np.asarray(artist.get_offsets())), len(artist.get_paths()))
    return int(np.size(artist.get_xdata())) if isinstance(artist, Line2D) else 0


def _trial_table(reader: SearchReader) -> Iterator[str]:
    history = reader.search
    trials = sorted(history.trials.values(), key=lambda trial: (trial.best is None, trial.best or (), trial.trial_id))
    names = list(dict.fromkeys(name for trial in trials[:_MAX_ROWS] for name in trial.config))
    if len(trials) > _MAX_ROWS:
        note = f"The {_MAX_ROWS} best of {len(trials):,} trials. All: fanwise tune export {history.name} --out FILE"
        yield f'<p class="soft">{_text(note)}</p>'
    head = ["trial", "status", f"best {history.metric}", "reports", "seconds", *names]
    yield '<div class="rows"><table>\n<thead><tr>' + "".join(f"<th>{_text(name)}</th>" for name in head)
    yield "</tr></thead>\n<tbody>"
    for trial in trials[:_MAX_ROWS]:
        status = history.status_of(trial, is_tuner_killed=reader.is_tuner_killed)
        best = None if trial.best is None else trial.best.value
        cells = [trial.trial_id, status, best, trial.last_iter, round(trial.worker_time_s or 0.0, 2)]
        yield "<tr>" + "".join(map(_cell, [*cells, *(trial.config.get(name) for name in names)])) + "</tr>"
    yield "</tbody>\n</table></div>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"<td>{value:.6g}</td>"
    return f"<td>{'' if value is None else _text(str(value)[:_MAX_CELL_CHARS])}</td>"


def _failures(failures: Sequence[tuple[int, Failure]]) -> Iterator[str]:
    """Yield the failures, equal ones together, each with the traceback of its first trial."""
    groups: dict[tuple[str, str], list[tuple[int, Failure]]] = {}
    for trial_id, failure in failures:
        groups.setdefault((failure.kind, failure.text), []).append((trial_id, failure))
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    for (kind, text), group in ranked[:_MAX_FAILURES]:
        ids = ", ".join(str(trial_id) for trial_id, _ in group[:20]) + (", ..." if len(group) > 20 else "")
        yield f"<details><summary>{_text(f'{kind}: {text.partition(chr(10))[0]}')}"
        yield f' <span class="soft">({counted(len(group), "trial")}: {_text(ids)})</span></summary>'
        yield _pre(of_the_user(group[0][1].traceback or text)) + "</details>"
    if len(ranked) > _MAX_FAILURES:
        yield f'<p class="soft">and {counted(len(ranked) - _MAX_FAILURES, "other failure")}</p>'


def _environment(meta: Mapping[str, Any]) -> Iterator[str]:
    yield _definitions(meta.get("versions", {}))
    for name in ("space", "scheduler", "settings"):
        yield f"<details><summary>{name}</summary>{_pre(json.dumps(meta.get(name), indent=2))}</details>"


def _definitions(items: Mapping[str, object]) -> str:
    return "<dl>" + "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in items.items()) + "</dl>"


def _pre(text: str) -> str:
    return f"<pre>{escape(printable(text))}</pre>"


def _text(value: object) -> str:
    return escape(printable_line(str(value)))
