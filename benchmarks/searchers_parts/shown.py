"""Markdown tables of finished runs, and a figure of ranks and of regret."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import quantile, spread, table

from .methods import RANDOM, Method
from .regret import Duels, Floats, Interval, Run, mean_regrets, regrets

BUDGETS = (10.0, 20.0, 40.0, 70.0, 100.0)  # in trainings
SMALL = 40.0  # so far slow methods need to run
_CURVE = 36  # points of a curve
_LEAST = 1e-4  # regret that is drawn
MARKS = ("<!-- made by benchmarks/searchers.py -->", "<!-- end of what it makes -->")


@dataclass(frozen=True, slots=True)
class Group:
    """Methods that are compared with each other: each has run on all of the tables with all of the budgets."""

    title: str
    tables: Sequence[str]
    methods: Sequence[str]
    budgets: Sequence[float]


def groups(runs: Sequence[Run], methods: Sequence[Method]) -> list[Group]:
    """All tables, and those with learning curves, where alone trials can be stopped early; all budgets, and the small
    ones where more runs went so far."""
    early = {method.name for method in methods if method.stops_early}
    tables = {"all tables": sorted({run.table for run in runs})}
    with_curves = sorted({run.table for run in runs if run.method in early})
    if with_curves and with_curves != tables["all tables"]:
        tables["tables with curves"] = with_curves
    most = max(run.trainings for run in runs)
    budgets = {limit: [budget for budget in BUDGETS if budget <= min(limit, most)] for limit in (BUDGETS[-1], SMALL)}
    found: list[Group] = []
    for title, names in tables.items():
        before: Counter[tuple[str, str]] = Counter()
        for within in {tuple(each): None for each in budgets.values()}:
            ran = Counter((run.table, run.method) for run in runs if run.trainings >= within[-1])
            present = [m.name for m in methods if all((table, m.name) in ran for table in names)]
            if len(present) > 1 and ran != before:
                found.append(Group(f"{title}, to {within[-1]:.0f} trainings", names, present, within))
            before = ran
    return found


def ranks(runs: Sequence[Run], group: Group, budgets: Sequence[float]) -> dict[str, Interval]:
    """Mean rank over the tables and seeds of the group, and over some of its budgets, with its interval."""
    return Duels.between(regrets(_of(runs, group), budgets), group.tables, group.methods).intervals()


def _of(runs: Sequence[Run], group: Group) -> list[Run]:
    """Those that had all budgets of a group, so that a row counts the same runs from its first to its last column."""
    return [run for run in runs if run.trainings >= group.budgets[-1]]


def tables_of(runs: Sequence[Run], methods: Sequence[Method], beside: str | None = None) -> list[str]:
    """For each group mean ranks and regret; how often `beside` was better than the others; regret at the largest
    budget for each table; the time of a suggestion."""
    found = groups(runs, methods) if runs else []
    if not found:
        return [_times(runs, methods)]
    return [
        *(each(runs, group) for group in found for each in (_ranks, _regrets)),
        *([_duels(runs, found, beside)] if beside is not None else []),
        _by_table(runs, found),
        _times(runs, methods),
    ]


def _ranks(runs: Sequence[Run], group: Group) -> str:
    columns = [ranks(runs, group, budgets) for budgets in (group.budgets, *((each,) for each in group.budgets))]
    header = [f"mean rank of {len(group.methods)}, {group.title}", "all budgets (95 % interval)"]
    header += [*(f"at {budget:.0f}" for budget in group.budgets), "runs a table"]
    rows = [
        [name, *(_interval(column[name]) for column in columns), _seeds(_of(runs, group), name)]
        for name in sorted(group.methods, key=lambda name: _key(columns[0][name]))
    ]
    return table(header, rows)


def _duels(runs: Sequence[Run], found: Sequence[Group], beside: str) -> str:
    """A column for each group in which it is."""
    columns = {
        group.title: Duels.between(regrets(_of(runs, group), group.budgets), group.tables, group.methods).beaten_by(
            beside
        )
        for group in found
        if beside in group.methods
    }
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [
        [name, *(_interval(column[name]) if name in column else "-" for column in columns.values())] for name in names
    ]
    return table([f"{beside}: share better than", *columns], rows)


def _seeds(runs: Sequence[Run], method: str) -> str:
    """How many, a table: the least and the greatest number."""
    of_tables = Counter(run.table for run in runs if run.method == method).values()
    return str(max(of_tables)) if min(of_tables) == max(of_tables) else f"{min(of_tables)}-{max(of_tables)}"


def _key(interval: Interval) -> float:
    return interval.mean if interval.mean == interval.mean else float("inf")


def _interval(of: Interval) -> str:
    return f"{of.mean:.2f} ({of.low:.2f}-{of.high:.2f})"


def _regrets(runs: Sequence[Run], group: Group) -> str:
    """Mean over tables and seeds; beside random search, over the tables at each budget, and at the worst of all."""
    means = mean_regrets(regrets(_of(runs, group), group.budgets), group.tables, group.methods)
    rows = []
    for name in group.methods:
        of_tables = np.array([means[one, name] for one in group.tables])
        beside = ["-", "-"]
        if RANDOM in group.methods:
            of_random = np.array([means[one, RANDOM] for one in group.tables])
            beside = [
                f"{(of_tables.mean(axis=0) / of_random.mean(axis=0)).max():.2f}",
                _worst(np.divide(of_tables, of_random, out=np.ones_like(of_tables), where=of_random > 0), group),
            ]
        rows.append([name, *(f"{each:.4f}" for each in of_tables.mean(axis=0)), *beside])
    rows.sort(key=lambda row: row[len(group.budgets)])
    budgets = [f"at {budget:.0f}" for budget in group.budgets]
    return table([f"mean regret, {group.title}", *budgets, "/ random, worst budget", "worst table and budget"], rows)


def _worst(ratio_TB: Floats, group: Group) -> str:
    place, budget = divmod(int(ratio_TB.argmax()), ratio_TB.shape[1])
    return f"{ratio_TB[place, budget]:.2f}: {group.tables[place]} at {group.budgets[budget]:.0f}"


def _by_table(runs: Sequence[Run], found: Sequence[Group]) -> str:
    """At the largest budget, of what has had it on all tables of a group."""
    budget = max(budget for group in found for budget in group.budgets)
    methods = dict.fromkeys(name for group in found if group.budgets[-1] == budget for name in group.methods)
    names = sorted({name for group in found for name in group.tables})
    means = mean_regrets(regrets(runs, (budget,)), names, list(methods))
    rows = [
        [method, *(f"{means[one, method][0]:.4f}" if (one, method) in means else "-" for one in names)]
        for method in methods
    ]
    return table([f"mean regret at {budget:.0f} trainings", *names], rows)


def _times(runs: Sequence[Run], methods: Sequence[Method]) -> str:
    rows = []
    for method in methods:
        of = [run for run in runs if run.method == method.name]
        taken_ms = [each for run in of for each in run.suggest_ms]
        if taken_ms:
            trials = spread([float(run.trials) for run in of]).shown(0)
            rows.append([method.name, f"{quantile(taken_ms, 0.5):.2f}", f"{quantile(taken_ms, 0.99):.1f}", trials])
    return table(["a suggestion", "median ms", "p99 ms", "trials a run"], rows)


def counted(runs: Sequence[Run]) -> str:
    """What all tables were made from, in a line."""
    return f"{len(runs):,} searches with {sum(run.trials for run in runs):,} trials."


def write_page(path: Path, parts: Sequence[str]) -> None:
    """Put the parts between the MARKS of a page, in place of what stood there.

    Raises:
        ValueError: the page has no such marks.
    """
    text = path.read_text()
    first, second = MARKS
    before, began, rest = text.partition(first)
    _, ended, after = rest.partition(second)
    if not (began and ended):
        raise ValueError(f"{path} has no lines {first} and {second} for the tables to stand between")
    path.write_text("\n\n".join([before + first, *parts, second + after]))


def draw(runs: Sequence[Run], methods: Sequence[Method], path: Path) -> None:
    """A PNG: mean ranks with intervals for each group, then regret over budget for each table; peers are hollow and
    dashed."""
    if not runs:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = groups(runs, methods)
    names = sorted({run.table for run in runs})
    columns = 2 if len(names) > 1 else 1
    rank_rows, regret_rows = (-(-len(each) // columns) for each in (found, names))
    rank_height = 0.9 + 0.26 * max(len(group.methods) for group in found) if found else 0.0
    figure, axes = plt.subplots(
        rank_rows + regret_rows,
        columns,
        figsize=(5.5 * columns, rank_height * rank_rows + 3.0 * regret_rows + 0.8),
        height_ratios=[rank_height] * rank_rows + [3.0] * regret_rows,
        squeeze=False,
        layout="constrained",
    )
    colours = _colours(methods)
    for axis, group in zip(axes[:rank_rows].flat, found, strict=False):
        _draw_ranks(axis, group.title, ranks(runs, group, group.budgets), methods, colours)
    for axis, name in zip(axes[rank_rows:].flat, names, strict=False):
        for method in methods:
            if method.shown:
                _draw_regret(
                    axis, [run for run in runs if (run.table, run.method) == (name, method.name)], method, colours
                )
        _log_scale(axis)
        axis.set_ylim(bottom=max(axis.get_ylim()[0], _LEAST))
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("budget, trainings", fontsize=8)
        axis.set_ylabel("mean regret", fontsize=8)
        axis.grid(alpha=0.3)
    for axis in [*list(axes[:rank_rows].flat)[len(found) :], *list(axes[rank_rows:].flat)[len(names) :]]:
        axis.axis("off")
    labelled: dict[str, Any] = {}
    for axis in axes[rank_rows:].flat:
        labelled.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    handles = list(labelled.values())
    figure.legend(handles, list(labelled), loc="outside lower center", ncols=2 * columns, fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _colours(methods: Sequence[Method]) -> Mapping[str, object]:
    """Grey for random search; a colour for each other method."""
    from matplotlib import colormaps

    cycle = [*map(colormaps["tab10"], (0, 1, 2, 3, 4, 5, 6, 8, 9)), *map(colormaps["Dark2"], range(7))]
    cycle += map(colormaps["tab20b"], range(0, 20, 3))
    others = [method.name for method in methods if method.name != RANDOM]
    return {RANDOM: "0.45", **{name: cycle[place % len(cycle)] for place, name in enumerate(others)}}


def _log_scale(axis) -> None:  # type: ignore[no-untyped-def]
    """With numbers such as 0.02 at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(labelsize=8)


def _draw_ranks(axis, title, of, methods, colours) -> None:  # type: ignore[no-untyped-def]
    hollow = {method.name for method in methods if method.peer is not None}
    best_first = sorted(of, key=lambda name: _key(of[name]))
    for place, name in enumerate(best_first):
        one = of[name]
        axis.plot([one.low, one.high], [place, place], color=colours[name], linewidth=2)
        axis.plot(one.mean, place, "o", color=colours[name], markerfacecolor="white" if name in hollow else None)
    axis.set_yticks(range(len(best_first)), best_first, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.invert_yaxis()
    axis.set_title(f"mean rank, {title}", fontsize=10)
    axis.grid(axis="x", alpha=0.3)


def _draw_regret(axis, runs: Sequence[Run], method: Method, colours: Mapping[str, object]) -> None:  # type: ignore[no-untyped-def]
    """Of one method on one table; what had a small budget ends there."""
    if not runs:
        return
    most = max(run.trainings for run in runs)
    budgets = np.linspace(most / _CURVE, most, _CURVE)
    regret = np.mean(list(regrets(runs, list(budgets)).values()), axis=0)
    style, width = ("-", 1.8) if method.peer is None else ("--", 1.2)
    axis.plot(budgets, regret, style, color=colours[method.name], linewidth=width, label=method.name)
