"""The figures: what is on them, that they can always be drawn, and that nothing global is touched."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from fanwise.plot import SearchData, incumbent, learning_curves, rungs, save_figure, workers
from fanwise.plot.canvas import IDLE, PALETTE, file_bytes, plain, trial_color
from fanwise.plot.data import FrontData, ReportPoint, Span
from fanwise.plot.fronts import pareto_front

PNG = b"\x89PNG\r\n\x1a\n"
OVER_TIME: list[Callable[[SearchData], Figure]] = [incumbent, learning_curves, workers]
FIGURES = [*OVER_TIME, rungs]


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """matplotlib opens the font files at the first drawing and keeps them; so let that be before the tests."""
    file_bytes(learning_curves(make_search(1)))
    file_bytes(rungs(halving(500)))  # on a logarithmic axis, whose numbers have fonts of their own


def make_search(
    n_trials: int = 6,
    n_workers: int = 2,
    *,
    name: str = "lenet",
    metric: str = "error",
    mode: str = "min",
    n_reports: int = 4,
    shift: float = 0.0,
    first: float = 0.9,
) -> SearchData:
    """Trials of n_reports seconds each on every worker; trial i ends at about 1 / (i + 2)."""
    reports, spans = [], []
    for trial in range(n_trials):
        ready_s = trial // n_workers * (n_reports + 1.0)
        begin_s, end_s = max(0.0, ready_s - 0.5), ready_s + n_reports
        spans.append(Span(trial % n_workers, trial, begin_s, ready_s, end_s, "Completed"))
        for i in range(1, n_reports + 1):
            value = first if i == 1 else shift + 1 / (trial + 2) + 0.5 / i
            reports.append(ReportPoint(trial, ready_s + i, i, value))
    last_s = max((span.ended_s or 0.0 for span in spans), default=0.0) + 0.1
    startup_s, windows = (0.5, [(0.0, last_s, n_workers)]) if spans else (None, [])
    return SearchData(name, metric, mode, n_workers, reports, spans, startup_s, last_s, last_s, "epoch", windows)


def texts(figure: Figure) -> list[str]:
    """Everything that is written on the figure, as it is drawn."""
    import matplotlib.text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


@pytest.mark.parametrize("draw", FIGURES)
def test_a_search_data_without_reports_gives_a_figure_that_says_so(draw: Callable[[SearchData], Figure]) -> None:
    figure = draw(make_search(0))
    assert any(text in ("no reports", "no trial has started") for text in texts(figure))
    assert file_bytes(figure).startswith(PNG)


@pytest.mark.parametrize("draw", FIGURES)
def test_a_single_report_can_be_drawn(draw: Callable[[SearchData], Figure]) -> None:
    assert file_bytes(draw(make_search(1, 1, n_reports=1))).startswith(PNG)


@pytest.mark.parametrize("draw", FIGURES)
def test_values_that_are_not_finite_can_be_drawn(draw: Callable[[SearchData], Figure]) -> None:
    reports = [ReportPoint(0, float(i), i, value) for i, value in enumerate([math.nan, math.inf, -math.inf, 0.5])]
    search = SearchData("s", "loss", "min", 1, reports, [], None, None, 5.0)
    assert file_bytes(draw(search)).startswith(PNG)


def test_reports_that_are_not_shown_are_counted_on_the_figure() -> None:
    reports = [ReportPoint(0, float(i), i, value) for i, value in enumerate([1e6, math.nan, 0.9, 0.5, 0.4])]
    search = SearchData("s", "loss", "min", 1, reports, [], None, None, 5.0)
    for draw in (incumbent, learning_curves):
        assert "reports not shown: 1 above this axis, 1 not finite" in texts(draw(search))


def test_only_values_that_are_not_finite_are_told_apart_from_no_reports() -> None:
    search = SearchData("s", "loss", "min", 1, [ReportPoint(0, 1.0, 1, math.nan)], [], None, None, 5.0)
    assert "no finite value in 1 report" in texts(incumbent(search))


@pytest.mark.parametrize("draw", [incumbent, learning_curves])
def test_the_title_names_the_search_and_its_best_value(draw: Callable[[SearchData], Figure]) -> None:
    assert "lenet: best error 0.2679 (trial 5)" in texts(draw(make_search(6)))


@pytest.mark.parametrize("draw", OVER_TIME)
def test_axes_carry_their_units(draw: Callable[[SearchData], Figure]) -> None:
    assert "wall-clock time since the first worker was ready [s]" in texts(draw(make_search()))
    assert "wall-clock time [s]" in texts(draw(make_search(0)))


@pytest.mark.parametrize("draw", FIGURES)
def test_dollars_in_names_are_not_read_as_formulas(draw: Callable[[SearchData], Figure]) -> None:
    # As a formula this name would be an error, and $x$ a lone italic x.
    figure = draw(make_search(name=r"$\frac{$ costs $x$", metric="$err"))
    assert any(r"\$\frac{\$ costs \$x\$" in text for text in texts(figure))
    assert file_bytes(figure).startswith(PNG)


def test_the_incumbent_line_passes_through_the_improvements() -> None:
    reports = [ReportPoint(0, 1.5, 1, 0.9), ReportPoint(0, 2.5, 2, 0.75), ReportPoint(1, 4.0, 1, 0.8)]
    figure = incumbent(SearchData("s", "e", "min", 1, reports, [], None, None, 5.6))
    line = next(line for line in figure.axes[0].get_lines() if line.get_label() == "best so far")
    assert np.asarray(line.get_xydata()).tolist() == [[1.5, 0.9], [2.5, 0.75], [5.6, 0.75]]
    assert line.get_drawstyle() == "steps-post"


def test_searches_of_one_label_become_one_mean_and_band() -> None:
    searches = [make_search(shift=0.01 * i) for i in range(3)]
    figure = incumbent(*searches, make_search(), labels=["random", "random", "random", "_local"])
    legend = figure.axes[0].get_legend()
    assert legend is not None
    labels = [text.get_text().strip() for text in legend.get_texts()]
    assert labels == ["random: 0.2779 (3 runs)", "_local: 0.2679"]
    assert len(figure.axes[0].collections) == 1


def test_learning_curves_give_each_trial_its_own_line_and_color() -> None:
    lines = [line for line in learning_curves(make_search(5)).axes[0].get_lines() if line.get_linewidth() < 3]
    assert {line.get_color() for line in lines if line.get_marker() == "o"} == {trial_color(i) for i in range(5)}


@pytest.mark.parametrize(("last_s", "label"), [(1200.0, "[s]"), (3600.0, "[min]"), (86400.0, "[h]")])
def test_time_is_shown_in_a_unit_that_suits_the_length_of_the_search(last_s: float, label: str) -> None:
    search = SearchData("s", "e", "min", 1, [ReportPoint(0, last_s, 1, 0.5)], [], None, None, last_s)
    assert incumbent(search).axes[0].get_xlabel() == f"wall-clock time {label}"


def test_long_and_unprintable_names_are_shortened_and_escaped() -> None:
    assert plain("two\nlines\x1b[0m") == r"two\nlines\x1b[0m"
    shown = plain("start" + "x" * 500 + "end")
    assert len(shown) <= 60 and shown.startswith("start") and shown.endswith("end")


def test_the_y_range_of_learning_curves_survives_huge_first_values() -> None:
    figure = learning_curves(make_search(6, first=1e7))
    assert figure.axes[0].get_ylim()[1] < 2.0
    assert figure.axes[0].get_yscale() == "linear"


def test_values_over_many_decades_are_drawn_on_a_logarithmic_axis() -> None:
    reports = [ReportPoint(0, float(i), i, 10.0**-i) for i in range(6)]
    figure = learning_curves(SearchData("s", "loss", "min", 1, reports, [], None, None, 6.0))
    assert figure.axes[0].get_yscale() == "log"


def test_the_star_of_the_best_trial_is_whole_also_at_the_last_moment() -> None:
    reports = [ReportPoint(0, 1.0, 1, 0.9), ReportPoint(0, 10.0, 2, 0.1)]
    figure = learning_curves(SearchData("s", "e", "min", 1, reports, [], None, None, 10.0))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (star,) = [line for line in axes.get_lines() if line.get_marker() == "*"]
    centre = axes.transData.transform((10.0, 0.1))[0]
    half = star.get_markersize() / 2 * figure.dpi / 72
    assert centre + half < axes.bbox.x1 < figure.bbox.x1
    assert not star.get_clip_on()
    assert "0" in texts(figure), "its number is there as well"


def test_two_searches_share_the_time_axis_and_show_their_utilization() -> None:
    figure = workers(make_search(), make_search(4))
    assert len(figure.axes) == 2
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    # Of 2 x 14.1 s, 3 x 4 s are busy and 2 x 0.5 s start-up on each worker; the rest is idle.
    title = (
        "lenet: 6 trials; the first worker was ready after 0.5 s\n"
        "worker utilization 85.1 % (start-up 7.1 %, idle 7.8 %)"
    )
    assert title in texts(figure)


def test_boxes_carry_the_trial_number_only_where_it_fits() -> None:
    assert {"0", "1", "2", "3"} <= set(texts(workers(make_search(4))))
    assert "3" not in texts(workers(make_search(400, 2)))


def test_the_time_between_two_runs_of_a_tuner_is_marked() -> None:
    search = make_search(4)
    assert "search interrupted" not in texts(workers(search))
    assert "search interrupted" in texts(workers(replace(search, windows=[(0.0, 4.0, 2), (5.0, 9.0, 2)])))


def test_start_up_has_a_shade_of_its_own_also_where_it_is_narrow() -> None:
    def shades(*startups_s: float) -> set[tuple[float, ...]]:
        ready_s = [20.0 * i + startup_s for i, startup_s in enumerate(startups_s)]
        spans = [Span(0, i, 20.0 * i, t_s, t_s + 9, "Completed") for i, t_s in enumerate(ready_s)]
        figure = workers(SearchData("s", "e", "min", 1, [], spans, 0.0, 30.0, 30.0))
        boxes = figure.axes[0].collections
        return {tuple(face) for collection in boxes for face in np.asarray(collection.get_facecolor())}

    trials = {to_rgba(trial_color(0)), to_rgba(trial_color(1))}
    (narrow,) = shades(0.01, 0.01) - trials - {to_rgba(IDLE)}
    (wide,) = shades(5.0, 5.0) - trials - {to_rgba(IDLE)}
    assert narrow == wide
    assert narrow not in {to_rgba(trial_color(i)) for i in range(7)}


def test_failed_trials_and_start_up_appear_in_the_legend_when_there_are_any() -> None:
    search = make_search(1, 1)
    assert "failed" not in texts(workers(search))
    spans = [Span(0, 0, 0.0, 0.0, 2.0, "Failed"), Span(0, 1, 2.0, 3.0, 4.0, "Completed")]
    failed = SearchData("s", "e", "min", 1, [], spans, 1.0, 4.0, 4.0)
    assert {"failed", "start-up", "no new trials"} <= set(texts(workers(failed)))


@pytest.mark.parametrize("num_trials", [150, pytest.param(1000, marks=pytest.mark.soak)])
def test_many_trials_on_64_workers_can_be_drawn(num_trials: int) -> None:
    search = make_search(num_trials, 64, n_reports=3)
    for draw in FIGURES:
        assert file_bytes(draw(search), dpi=50).startswith(PNG)


def test_wrong_numbers_of_searches_and_labels_are_refused() -> None:
    for draw in (incumbent, workers):
        with pytest.raises(ValueError, match="at least one search"):
            draw()
        with pytest.raises(ValueError, match="got 1 labels for 2 searches"):
            draw(make_search(), make_search(), labels=["one"])


def test_searches_of_different_metrics_are_refused_in_one_figure() -> None:
    with pytest.raises(ValueError, match=r"accuracy \(max\), error \(min\)"):
        incumbent(make_search(), make_search(metric="accuracy", mode="max"))


def test_saving_writes_a_png_of_the_asked_resolution(tmp_path: Path) -> None:
    path = save_figure(incumbent(make_search()), tmp_path / "figure.png", dpi=100)
    written = path.read_bytes()
    assert written.startswith(PNG)
    assert int.from_bytes(written[16:20]) == 900  # width in pixels, from the header of the file


@pytest.mark.parametrize(("ending", "begin"), [("png", PNG), ("PNG", PNG), ("svg", b"<?xml"), ("pdf", b"%PDF-")])
def test_a_figure_is_saved_as_what_its_path_ends_in(ending: str, begin: bytes, tmp_path: Path) -> None:
    path = save_figure(workers(make_search()), tmp_path / f"figure.{ending}")
    assert path.read_bytes().startswith(begin)


@pytest.mark.parametrize(("name", "said"), [("f.jpg", r"'.*f\.jpg' ends in '\.jpg'"), ("f", "'.*f' has no ending")])
def test_another_ending_is_refused_and_nothing_is_written(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"saved as \.png, \.svg or \.pdf, and {said}"):
        save_figure(incumbent(make_search()), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_figure_shows_itself_in_a_notebook() -> None:
    figure = workers(make_search())
    shown: bytes = figure._repr_png_()  # type: ignore[attr-defined]
    assert shown.startswith(PNG)


def test_a_hedge_of_curves_becomes_the_best_ten_a_median_and_a_band() -> None:
    figure = learning_curves(make_search(101, 4))
    (axes,) = figure.axes
    drawn = {line.get_color() for line in axes.get_lines() if line.get_marker() == "o"}
    assert len([line for line in axes.get_lines() if line.get_marker() == "o"]) == 10 and drawn <= set(PALETTE)
    assert {"middle 80 % of the reports of all 101 trials", "their median"} <= set(texts(figure))
    assert len(learning_curves(make_search(100, 4)).axes) == 2, "a hundred are drawn, with the workers below"


# -- rungs -------------------------------------------------------------------------------------------------------------


def halving(n_trials: int, *, value: float = 0.5) -> SearchData:
    """All trials pause at epoch 1; every second one goes on to epoch 3."""
    reports = [ReportPoint(i, i + 1.0, 1, value + 0.1 * i, 1.0, "PAUSE") for i in range(n_trials)]
    reports += [ReportPoint(i, 100.0 + i, 2, 0.3 + 0.1 * i, 3.0) for i in range(0, n_trials, 2)]
    return SearchData("h", "error", "min", 1, reports, [], None, None, 999.0, "epoch")


def dots(figure: Figure) -> list[int]:
    """How many dots each scatter of a figure holds."""
    found = [c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection"]
    return [len(np.asarray(c.get_offsets())) for c in found]


def test_rungs_show_which_trials_arrived_and_continued() -> None:
    figure = rungs(halving(5))
    assert {"5 trials\n3 continued", "3 trials", "epoch (trials in order of time)", "1", "3"} <= set(texts(figure))
    assert dots(figure) == [2, 3, 3], "ended, continued, and at the end"
    (lines,) = [c for c in figure.axes[0].collections if type(c).__name__ == "LineCollection"]
    assert [tuple(np.asarray(path.vertices)[:, 1]) for path in lines.get_paths()] == [
        (0.5, 0.3),
        (0.7, 0.5),
        (0.9, 0.7),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.5])
def test_rungs_can_be_drawn_of_one_and_of_many_trials_and_of_any_value(value: float) -> None:
    for n_trials in (1, 2, 500):
        assert file_bytes(rungs(halving(n_trials, value=value)), dpi=50).startswith(PNG)


def test_a_search_that_stops_nobody_says_so_in_place_of_rungs() -> None:
    assert "no trial was stopped or paused" in texts(rungs(make_search()))


def star_of(search: SearchData) -> list[tuple[int, float]]:
    """Column and value of the star."""
    stars = [line for line in rungs(search).axes[0].get_lines() if line.get_marker() == "*"]
    return [(round(float(np.asarray(s.get_xdata())[0])), float(np.asarray(s.get_ydata())[0])) for s in stars]


def test_the_star_is_at_the_last_rung_of_the_best_trial_until_its_best_report() -> None:
    search = halving(3)
    points = list(map(ReportPoint._make, search.reports.tolist()))
    assert star_of(search) == [(1, 0.3)]
    low, between = ReportPoint(0, 0.5, 0, 0.1, 1.0, "PAUSE"), ReportPoint(0, 50.0, 2, 0.1, 2.0)
    at_first = [low, *[point._replace(iter=point.iter + 1) for point in points]]
    assert star_of(replace(search, reports=at_first)) == [(0, 0.1)]
    later = [*points[:3], between, *[point._replace(iter=3) for point in points[3:]]]
    assert star_of(replace(search, reports=later)) == [(0, 0.5)]
    without_rung = [*points, ReportPoint(9, 0.5, 1, 0.01, 0.5)]
    assert star_of(replace(search, reports=without_rung)) == []


# -- pauses in the worker timeline -------------------------------------------------------------------------------------


def test_paused_and_resumed_trials_are_marked_where_there_is_room() -> None:
    def marks(scale_s: float) -> dict[str, list[float]]:
        stays = [(0, 0.0, 3.0, "Paused"), (1, 3.0, 6.0, "Stopped"), (0, 6.0, 9.0, "Completed")]
        spans = [Span(0, i, a * scale_s, a * scale_s, b * scale_s, status) for i, a, b, status in stays]
        figure = workers(SearchData("s", "e", "min", 1, [], spans, 0.0, None, 9.0))
        found = [c for c in figure.axes[0].collections if c.get_label() in ("paused", "resumed")]
        return {str(c.get_label()): np.asarray(c.get_offsets())[:, 0].tolist() for c in found}

    found = marks(1.0)
    assert list(found) == ["paused", "resumed"]
    assert 2.7 < found["paused"][0] < 3.0 and 6.0 < found["resumed"][0] < 6.3
    assert marks(0.01) == {}, "boxes of a hundredth of the axis have no room"


def test_without_a_feasible_report_only_infeasible_reports_are_drawn() -> None:
    search = make_search(6)
    none = replace(search, reports=[(*point[:-1], False) for point in search.reports.tolist()])
    assert [text.get_text() for text in incumbent(none).legends[0].get_texts()] == ["infeasible reports"]


# -- Pareto fronts -----------------------------------------------------------------------------------------------------

POINTS = [(0, (1.0, 4.0)), (1, (2.0, 2.0)), (2, (3.0, 3.0)), (3, (4.0, 1.0))]


@pytest.mark.parametrize(
    ("modes", "signs"), [(("min", "min"), (1, 1)), (("max", "min"), (-1, 1)), (("min", "max"), (1, -1))]
)
def test_a_line_leads_along_the_border_of_the_dominated_region(modes: tuple[str, str], signs: tuple[int, int]) -> None:
    points = [(i, (signs[0] * x, signs[1] * y)) for i, (x, y) in POINTS]
    figure = pareto_front(FrontData("f", list(zip(("a", "b"), modes, strict=True)), points, [0, 1, 3]))
    (border,) = figure.axes[0].get_lines()
    assert border.get_drawstyle() == "steps-post"
    assert np.asarray(border.get_xydata()).tolist() == [list(points[i][1]) for i in (0, 1, 3)]
    words = {"min": "smaller", "max": "larger"}
    assert figure.axes[0].get_xlabel() == f"a ({words[modes[0]]} is better)"
    assert {"f: 3 of 4 reports on the Pareto front, of 3 trials", "0", "1", "3"} <= set(texts(figure))


def test_three_objectives_get_axes_for_each_pair() -> None:
    objectives = [("a", "min"), ("b$", "max"), ("c", "min")]
    figure = pareto_front(FrontData("f", objectives, [(0, (1.0, 2.0, 3.0))], [0], 2))
    assert len(figure.axes) == 3
    assert any("\n2 not finite are left out" in text for text in texts(figure))
    assert len(pareto_front(FrontData("f", objectives, [], [])).axes) == 3


def test_one_objective_has_no_front() -> None:
    with pytest.raises(ValueError, match="2 to 4 objectives, got 1: error"):
        FrontData("f", [("error", "min")], [], [])


# -- in a process of its own, to see what is loaded; and matplotlib keeps the font files of every thread open ----------

OWN_PROCESS = """
import json, sys
import fanwise.plot as plot
by_import = sorted({"matplotlib", "numpy"} & set(sys.modules))
data = plot.SearchData("s", "e", "min", 1, [(0, 1.0, 1, 0.5, 1.0, "CONTINUE", True)], [], None, None, 2.0)
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as threads:
    drawn = list(threads.map(lambda _: plot.learning_curves(data)._repr_png_().hex(), range(4)))
for figure in (plot.incumbent(data), plot.workers(data)):
    figure._repr_png_()
has_pyplot = "matplotlib.pyplot" in sys.modules
print(json.dumps({"by import": by_import, "has pyplot": has_pyplot, "drawn": drawn}))
"""


@pytest.fixture(scope="module")
def seen() -> Any:  # Any: JSON
    result = subprocess.run([sys.executable, "-c", OWN_PROCESS], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_figures_can_be_drawn_in_threads(seen: Any) -> None:
    assert len(seen["drawn"]) == 4
    assert len(set(seen["drawn"])) == 1, "drawn at the same time, equal figures differ"


def test_importing_plot_loads_no_matplotlib_and_drawing_no_pyplot(seen: Any) -> None:
    assert seen["by import"] == [], "the import loads a drawing library"
    assert not seen["has pyplot"], "drawing touches pyplot"
