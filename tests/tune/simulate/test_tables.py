"""Tables of learning curves: nearest configurations, ends of curves, data frames and errors."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from fanwise.tune import (
    FIFO,
    Space,
    StoppingCriterion,
    choice,
    loguniform,
    randint,
    uniform,
)
from fanwise.tune.simulate import (
    CurveTable,
    FunctionTable,
    Step,
    Table,
    from_frame,
    simulate,
)


def steps(table: Table, **config: object) -> list[Step]:
    """Return all steps of the curve of a configuration, to which the constants of the space are added."""
    curve = table.curve(table.space.check(config))
    result: list[Step] = []
    while (step := curve(len(result) + 1)) is not None:
        result.append(step)
    return result


def last_loss(table: Table, **config: object) -> float:
    value = steps(table, **config)[-1][0]["loss"]
    assert isinstance(value, float)
    return value


def table_of(space: Mapping[str, object], losses: list[float], **columns: list[object]) -> CurveTable:
    """Return a table with one report of each configuration, after 1 s."""
    array = np.array(losses)[:, None]
    return CurveTable(space, columns, {"loss": array}, np.ones_like(array))


def test_curve_has_values_resources_and_seconds_of_training() -> None:
    table = CurveTable(
        {"x": uniform(0, 1)}, {"x": [0.5]}, {"loss": [[3.0, 2.0, 1.0]]}, [[1.0, 1.5, 4.0]], resources=[1, 3, 9]
    )
    assert table.space.constants == {"max_epochs": 9}
    assert len(table) == 1
    assert steps(table, x=0.1) == [
        ({"loss": 3.0, "epoch": 1}, 1.0),
        ({"loss": 2.0, "epoch": 3}, 0.5),
        ({"loss": 1.0, "epoch": 9}, 2.5),
    ]


def test_curve_ends_at_the_maximum_resource_or_the_first_nan() -> None:
    arrays = ({"loss": [[3.0, 2.0, 1.0]]}, [[1.0, 2.0, math.nan]])
    cut = CurveTable({"x": 1}, {}, {"loss": [[3.0, 2.0, 1.0]]}, [[1.0, 2.0, math.nan]])
    assert len(steps(cut)) == 2
    chosen = CurveTable({"x": 1, "max_epochs": randint(1, 3)}, {}, arrays[0], [[1.0, 2.0, 3.0]])
    assert [len(steps(chosen, max_epochs=last)) for last in (1, 2, 3)] == [1, 2, 3]


def test_decreasing_times_are_raised_to_the_running_maximum() -> None:
    table = CurveTable({"x": 1}, {}, {"loss": [[3.0, 2.0, 1.0]]}, [[2.0, 1.0, 3.0]])
    assert [step_s for _, step_s in steps(table)] == [2.0, 0.0, 1.0]


def test_distance_is_measured_on_the_scale_of_the_domain() -> None:
    table = table_of({"rate": loguniform(1e-4, 1.0)}, [1.0, 2.0, 3.0], rate=[1e-4, 1e-2, 1.0])
    assert [last_loss(table, rate=rate) for rate in (5e-4, 2e-3, 0.09, 0.2)] == [1.0, 2.0, 2.0, 3.0]


def test_categories_have_the_distance_of_the_ends_of_a_domain() -> None:
    space: dict[str, object] = {"kind": choice(["a", "b", "c"]), "x": uniform(0, 1)}
    table = table_of(space, [1.0, 2.0], kind=["a", "c"], x=[0.1, 0.9])
    assert last_loss(table, kind="a", x=0.85) == 1.0
    assert last_loss(table, kind="c", x=0.15) == 2.0
    assert [last_loss(table, kind="b", x=x) for x in (0.4, 0.6)] == [1.0, 2.0]


def test_first_of_equally_near_configurations_is_used() -> None:
    table = table_of({"x": uniform(0, 1)}, [1.0, 2.0, 3.0], x=[0.5, 0.5, 0.7])
    assert [last_loss(table, x=x) for x in (0.5, 0.7, 0.6)] == [1.0, 3.0, 1.0]


def test_error_names_the_array_with_a_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"values\['loss'\] has shape \(1, 2\).*must be \(2, 2\)"):
        CurveTable({"x": uniform(0, 1)}, {"x": [0, 1]}, {"loss": [[1.0, 2.0]]}, [[1.0, 2.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match=r"configs\['x'\] has shape \(1,\).*must be \(2,\)"):
        CurveTable({"x": uniform(0, 1)}, {"x": [0]}, {}, [[1.0, 2.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match="the space has 'y', but `configs` has only 'x'"):
        table_of({"x": uniform(0, 1), "y": uniform(0, 1)}, [1.0], x=[0.5])


def test_error_names_a_value_outside_the_space() -> None:
    table = table_of({"x": uniform(0, 1)}, [1.0], x=[7.0])
    with pytest.raises(ValueError, match=r"configs\['x'\] has 7.0, which is not in the space's uniform\(0.0, 1.0\)"):
        last_loss(table, x=0.5)


def test_function_table_needs_a_maximum_resource() -> None:
    with pytest.raises(ValueError, match="the space has no 'max_epochs', the maximum resource of a trial; it has 'x'"):
        FunctionTable(lambda config, epoch: ({}, 1.0), {"x": 1})


def test_numpy_numbers_of_a_function_become_floats() -> None:
    table = FunctionTable(lambda config, epoch: ({"loss": np.float32(0.5)}, 1.0), {"max_epochs": 1})
    value = steps(table)[0][0]["loss"]
    assert (type(value), value) == (float, 0.5)


def test_configurations_may_have_objects_or_their_names() -> None:
    space = {"sizes": choice([[64], [64, 64]]), "max_epochs": 1}
    function = FunctionTable(lambda config, epoch: ({"loss": 1.0 * len(config["sizes"])}, 1.0), space)  # type: ignore[arg-type]
    curves = CurveTable(space, {"sizes": [[64], [64, 64]]}, {"loss": [[1.0], [2.0]]}, [[1.0], [1.0]])
    for table in (function, curves):
        assert last_loss(table, sizes="[64, 64]") == last_loss(table, sizes=[64, 64]) == 2.0


def test_data_frame_becomes_curves() -> None:
    rows = [
        ("sgd", 0.1, 1, 9.0, 10.0),
        ("sgd", 0.1, 2, 8.0, 20.0),
        ("adam", 0.3, 2, 6.0, 12.0),
        ("adam", 0.3, 1, 7.0, 5.0),
        ("sgd", 0.2, 1, 5.0, 11.0),
    ]
    frame = pd.DataFrame(rows, columns=["optimizer", "rate", "epoch", "loss", "seconds"])
    space = {"optimizer": choice(["sgd", "adam"]), "rate": uniform(0.1, 0.3)}
    table = from_frame(frame, space, metrics="loss", resource_attr="epoch", elapsed_attr="seconds")
    assert table.space == Space({**space, "max_epochs": 2})
    assert steps(table, optimizer="adam", rate=0.3) == [
        ({"loss": 7.0, "epoch": 1}, 5.0),
        ({"loss": 6.0, "epoch": 2}, 7.0),
    ]
    assert steps(table, optimizer="sgd", rate=0.2) == [({"loss": 5.0, "epoch": 1}, 11.0)]
    search = simulate(FIFO(metric="loss"), table, StoppingCriterion(max_num_trials_started=20))
    assert search.best is not None
    assert search.best.value == 5.0


def test_curve_of_a_data_frame_ends_at_a_gap_and_one_without_the_first_resource_is_omitted() -> None:
    rows = [(1, 1, 9.0, 1.0), (1, 3, 8.0, 3.0), (1, 2, 8.5, 2.0), (2, 2, 1.0, 2.0), (3, 1, 7.0, 1.0), (3, 3, 6.0, 3.0)]
    frame = pd.DataFrame(rows, columns=["x", "epoch", "loss", "seconds"])
    table = from_frame(frame, {"x": randint(1, 3)}, metrics=["loss"], resource_attr="epoch", elapsed_attr="seconds")
    assert len(table) == 2
    assert [len(steps(table, x=x)) for x in (1, 2, 3)] == [3, 3, 1]


def test_data_frame_without_a_column_or_rows_is_refused() -> None:
    frame, space = pd.DataFrame({"x": [1.0], "epoch": [1], "loss": [1.0]}), {"x": uniform(0, 2)}
    with pytest.raises(ValueError, match="has no column 'seconds'; its columns are 'x', 'epoch', 'loss'"):
        from_frame(frame, space, metrics="loss", resource_attr="epoch", elapsed_attr="seconds")
    with pytest.raises(ValueError, match="the data frame has no rows"):
        from_frame(frame[:0], space, metrics="loss", resource_attr="epoch", elapsed_attr="epoch")
