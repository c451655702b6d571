"""The figures: what is on them, that they can always be drawn, and that nothing global is touched."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from fanwise.plot import ReportPoint, SearchData, Span, incumbent, learning_curves, save_figure, workers
from fanwise.plot.canvas import IDLE, png_bytes, trial_colour, trial_marker
from fanwise.plot.rows import RowScale

PNG = b"\x89PNG\r\n\x1a\n"
FIGURES: list[Callable[[SearchData], Figure]] = [incumbent, learning_curves, workers]


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """matplotlib opens the font files at the first drawing and keeps them; so let that be before the tests."""
    png_bytes(learning_curves(make_search(1)))


def make_search(
    n_trials: int = 6,
    n_workers: int = 2,
    *,
    name: str = "lenet",
    metric: str = "error",
    mode: str = "min",
    asynchronous: bool = True,
    n_reports: int = 4,
    shift: float = 0.0,
    first: float = 0.9,
) -> SearchData:
    """Trials of n_reports seconds each on every worker; trial i ends at about 1 / (i + 2)."""
    reports, spans = [], []
    for trial in range(n_trials):
        begin_s = trial // n_workers * (n_reports + 1.0)
        ready_s, end_s = begin_s + 0.5, begin_s + 0.5 + n_reports
        spans.append(Span(trial % n_workers, trial, begin_s, ready_s, end_s, end_s + 0.1, "Completed"))
        for i in range(1, n_reports + 1):
            value = first if i == 1 else shift + 1 / (trial + 2) + 0.5 / i
            reports.append(ReportPoint(trial, ready_s + i, i, value))
    last_s = max((span.free_s or 0.0 for span in spans), default=0.0)
    first_ready_s = 0.5 if spans else None
    return SearchData(name, metric, mode, n_workers, asynchronous, reports, spans, first_ready_s, last_s, last_s)


def texts(figure: Figure) -> list[str]:
    """Everything that is written on the figure, as it is drawn."""
    import matplotlib.text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


@pytest.mark.parametrize("draw", FIGURES)
def test_a_search_without_reports_gives_a_figure_that_says_so(draw: Callable[[SearchData], Figure]) -> None:
    figure = draw(make_search(0))
    assert any("no report yet" in text or "no trial has started yet" in text for text in texts(figure))
    assert png_bytes(figure).startswith(PNG)


@pytest.mark.parametrize("draw", FIGURES)
def test_a_single_report_can_be_drawn(draw: Callable[[SearchData], Figure]) -> None:
    assert png_bytes(draw(make_search(1, 1, n_reports=1))).startswith(PNG)


@pytest.mark.parametrize("draw", FIGURES)
def test_values_that_are_not_finite_can_be_drawn(draw: Callable[[SearchData], Figure]) -> None:
    reports = [ReportPoint(0, float(i), i, value) for i, value in enumerate([math.nan, math.inf, -math.inf, 0.5])]
    search = SearchData("s", "loss", "min", 1, True, reports, [], None, None, 5.0)
    assert png_bytes(draw(search)).startswith(PNG)


def test_reports_that_are_not_shown_are_counted_on_the_figure() -> None:
    reports = [ReportPoint(0, float(i), i, value) for i, value in enumerate([1e6, math.nan, 0.9, 0.5, 0.4])]
    search = SearchData("s", "loss", "min", 1, True, reports, [], None, None, 5.0)
    for draw in (incumbent, learning_curves):
        assert "reports not shown: 1 above this axis, 1 not finite" in texts(draw(search))


def test_only_values_that_are_not_finite_are_told_apart_from_no_reports() -> None:
    search = SearchData("s", "loss", "min", 1, True, [ReportPoint(0, 1.0, 1, math.nan)], [], None, None, 5.0)
    assert "no finite value in 1 reports" in texts(incumbent(search))


@pytest.mark.parametrize("draw", [incumbent, learning_curves])
def test_the_title_names_the_search_and_its_best_value(draw: Callable[[SearchData], Figure]) -> None:
    assert "lenet: best error 0.2679 (trial 5)" in texts(draw(make_search(6)))


@pytest.mark.parametrize("draw", FIGURES)
def test_axes_carry_their_units(draw: Callable[[SearchData], Figure]) -> None:
    assert "wall-clock time [s]" in texts(draw(make_search()))


@pytest.mark.parametrize("draw", FIGURES)
def test_dollars_in_names_are_not_read_as_formulas(draw: Callable[[SearchData], Figure]) -> None:
    # As a formula this name would be an error, and $x$ a lone italic x.
    figure = draw(make_search(name=r"$\frac{$ costs $x$", metric="$err"))
    assert any(r"\$\frac{\$ costs \$x\$" in text for text in texts(figure))
    assert png_bytes(figure).startswith(PNG)


def test_the_incumbent_line_passes_through_the_improvements() -> None:
    reports = [ReportPoint(0, 1.5, 1, 0.9), ReportPoint(0, 2.5, 2, 0.75), ReportPoint(1, 4.0, 1, 0.8)]
    figure = incumbent(SearchData("s", "e", "min", 1, True, reports, [], None, None, 5.6))
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


def test_learning_curves_give_each_trial_its_own_line_and_colour() -> None:
    figure = learning_curves(make_search(5))
    (lines,) = [c for c in figure.axes[0].collections if len(c.get_paths()) == 5]
    assert len({tuple(colour) for colour in lines.get_edgecolors()}) == 5  # type: ignore[attr-defined]


def test_the_y_range_of_learning_curves_survives_huge_first_values() -> None:
    figure = learning_curves(make_search(6, first=1e7))
    assert figure.axes[0].get_ylim()[1] < 2.0
    assert figure.axes[0].get_yscale() == "linear"


def test_values_over_many_decades_are_drawn_on_a_logarithmic_axis() -> None:
    reports = [ReportPoint(0, float(i), i, 10.0**-i) for i in range(6)]
    figure = learning_curves(SearchData("s", "loss", "min", 1, True, reports, [], None, None, 6.0))
    assert figure.axes[0].get_yscale() == "log"


def test_trials_next_to_each_other_differ_in_colour_and_the_first_49_in_colour_or_marker() -> None:
    assert all(trial_colour(i) != trial_colour(i + 1) for i in range(100))
    assert len({(trial_colour(i), trial_marker(i)) for i in range(49)}) == 49


def test_the_star_of_the_best_trial_is_whole_also_at_the_last_moment() -> None:
    reports = [ReportPoint(0, 1.0, 1, 0.9), ReportPoint(0, 10.0, 2, 0.1)]
    figure = learning_curves(SearchData("s", "e", "min", 1, True, reports, [], None, None, 10.0))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (star,) = [line for line in axes.get_lines() if line.get_marker() == "*"]
    centre = axes.transData.transform((10.0, 0.1))[0]
    half = star.get_markersize() / 2 * figure.dpi / 72
    assert centre + half < axes.bbox.x1 < figure.bbox.x1
    assert not star.get_clip_on()
    assert "0" in texts(figure), "its number is there as well"


def test_two_searches_share_the_time_axis_and_show_their_utilisation() -> None:
    figure = workers(make_search(asynchronous=False), make_search(4))
    assert len(figure.axes) == 2
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    # Of 2 x 14.1 s, 3 x 4 s are busy and 2 x 0.5 s start-up on each worker; the rest is idle.
    said = "lenet, synchronous: 6 trials\nworker utilisation 85.1 % (start-up 7.1 %, idle 7.8 %)"
    assert said in texts(figure)


def test_boxes_carry_the_trial_number_only_where_it_fits() -> None:
    assert {"0", "1", "2", "3"} <= set(texts(workers(make_search(4))))
    scale = RowScale(inches_per_s=0.1, row_in=0.4)
    assert scale.fits("7", 3.0)
    assert not scale.fits("1234", 3.0)
    assert not RowScale(inches_per_s=10.0, row_in=0.02).fits("7", 3.0)


def test_start_up_has_a_shade_of_its_own_also_where_it_is_narrow() -> None:
    def shades(*startups_s: float) -> set[tuple[float, ...]]:
        ready_s = [20.0 * i + startup_s for i, startup_s in enumerate(startups_s)]
        spans = [Span(0, i, 20.0 * i, t_s, t_s + 9, t_s + 9, "Completed") for i, t_s in enumerate(ready_s)]
        figure = workers(SearchData("s", "e", "min", 1, True, [], spans, ready_s[0], 30.0, 30.0))
        boxes = figure.axes[0].collections
        return {tuple(face) for collection in boxes for face in np.asarray(collection.get_facecolor())}

    trials = {to_rgba(trial_colour(0)), to_rgba(trial_colour(1))}
    (narrow,) = shades(0.01, 0.01) - trials - {to_rgba(IDLE)}
    (wide,) = shades(5.0, 5.0) - trials - {to_rgba(IDLE)}
    assert narrow == wide
    assert narrow not in {to_rgba(trial_colour(i)) for i in range(7)}


def test_failed_trials_and_start_up_appear_in_the_legend_when_there_are_any() -> None:
    search = make_search(1, 1)
    assert "failed" not in texts(workers(search))
    failed = SearchData("s", "e", "min", 1, True, [], [Span(0, 0, 0.0, 1.0, 5.0, 5.0, "Failed")], 1.0, 5.0, 5.0)
    assert {"failed", "start-up", "no new trials"} <= set(texts(workers(failed)))


def test_a_thousand_trials_on_64_workers_can_be_drawn() -> None:
    search = make_search(1000, 64, n_reports=3)
    for draw in FIGURES:
        assert png_bytes(draw(search), dpi=50).startswith(PNG)


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


# -- in a process of its own, to see what is loaded; and matplotlib keeps the font files of every thread open ----------

OWN_PROCESS = """
import json, sys
import fanwise.plot as plot
by_import = sorted({"matplotlib", "numpy"} & set(sys.modules))
data = plot.SearchData("s", "e", "min", 1, True, [plot.ReportPoint(0, 1.0, 1, 0.5)], [], None, None, 2.0)
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as threads:
    drawn = list(threads.map(lambda _: plot.learning_curves(data)._repr_png_().hex(), range(8)))
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
    assert len(seen["drawn"]) == 8
    assert len(set(seen["drawn"])) == 1, "drawn at the same time, equal figures differ"


def test_importing_plot_loads_no_matplotlib_and_drawing_no_pyplot(seen: Any) -> None:
    assert seen["by import"] == [], "the import loads a drawing library"
    assert not seen["has pyplot"], "drawing touches pyplot"
