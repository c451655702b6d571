"""`Deadlines` is compared with a model, a list in the order of setting."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.core.trials import Deadlines

TIMES = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 5.0])
STEPS = st.lists(st.tuples(st.sampled_from(["set", "set", "clear", "due"]), st.integers(0, 4), TIMES), max_size=40)


@given(STEPS)
def test_deadlines_are_due_in_the_order_of_time_and_then_of_setting(steps: list[tuple[str, int, float]]) -> None:
    deadlines = Deadlines()
    model: list[tuple[int, float]] = []  # in the order of setting
    for operation, trial_id, time_s in steps:
        if operation == "due":
            due = sorted((entry for entry in model if entry[1] <= time_s), key=lambda entry: entry[1])
            assert deadlines.take_due(time_s) == [due_id for due_id, _ in due]
            model = [entry for entry in model if entry not in due]
        else:
            model = [entry for entry in model if entry[0] != trial_id]
            if operation == "set":
                deadlines.set(trial_id, time_s)
                model.append((trial_id, time_s))
            else:
                deadlines.clear(trial_id)
        assert deadlines.next_s == min((at_s for _, at_s in model), default=None)
