"""A search as HTML: what it shows, and that nothing of a user's or a trial's text is markup."""

from dataclasses import replace

from fanwise.tune.display.notebook_page import search_page
from fanwise.tune.record.snapshot import SearchSnapshot, TrialRow

EVIL = "<script>alert(1)</script>&\"'"

SNAPSHOT = SearchSnapshot(
    name="digits",
    metric="loss",
    rows=[
        TrialRow(0, "Completed", 3, {"depth": 2}, {"loss": 0.5}, 1.25),
        TrialRow(1, "InProgress", 1, {"depth": 5}, {"loss": 0.25}, 0.5),
    ],
    config_names=("depth",),
    value_names=("loss",),
    running=1,
    finished=1,
    completed=1,
    failed=0,
    best=(0.25, 1),
    elapsed_s=2.5,
    total=12,
)


def test_a_row_a_trial_the_best_in_bold_and_the_counts() -> None:
    page = search_page(SNAPSHOT, "running")
    assert page.count("<tr style") == 2 and page.count("font-weight: bold") == 1
    assert "<b>digits</b> running" in page
    assert "<div>1 running, 1 finished (1 until the end)</div>" in page
    assert "<div>best loss 0.25 (trial 1): depth 5</div>" in page
    assert "(10 more trials are not shown)" in page
    assert search_page(SNAPSHOT, max_rows=1).count("<tr style") == 1


def test_nothing_that_users_write_is_markup() -> None:
    row = TrialRow(0, EVIL, 1, {EVIL: EVIL}, {EVIL: 0.5}, None)
    snapshot = replace(SNAPSHOT, name=EVIL, metric=EVIL, rows=[row], config_names=(EVIL,), value_names=(EVIL,))
    page = search_page(snapshot, EVIL)
    assert "<script" not in page and "alert(1)" in page
    assert page.count("&lt;script&gt;") >= 6
