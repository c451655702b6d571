"""Searches that cannot be resumed: the messages, and an unchanged experiment."""

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from disks import FullDisk
from record_edits import edit_meta
from searches import quiet_tuner, search

from fanwise.base.errors import CheckpointError, ClusterError, RecordError
from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.tune import (
    FIFO,
    StoppingCriterion,
    Tuner,
    load_checkpoint,
    load_experiment,
    replay_experiment,
    report,
    uniform,
)
from fanwise.tune.program import load_cluster, save_cluster
from fanwise.tune.record.event_file import line_of, read_events

SPACE = {"x": uniform(0, 1), "epochs": 3}
MORE = StoppingCriterion(max_num_trials_started=6)


def train(x: float, epochs: int) -> None:
    for epoch in range(1, epochs + 1):
        report(loss=x / epoch, epoch=epoch)


def another(x: float, epochs: int) -> None:
    train(x, epochs)


@pytest.fixture(scope="module")
def searched(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FANWISE_HOME", str(tmp_path_factory.mktemp("home")))
        return search(train, SPACE, pool=pool, name="kept").path


@pytest.fixture
def finished(searched: Path, tmp_path: Path) -> Path:
    """A copy of a search that has ended."""
    shutil.copytree(searched, tmp_path / "kept")
    return tmp_path / "kept"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": another}, "objective: was 'train', is 'another'"),
        ({"space": {"x": uniform(0, 2), "epochs": 3}}, r"'x' in the space: was .*, is "),
        ({"space": {"x": uniform(0, 1)}}, "'epochs' in the space: was .*, is None"),
        ({"scheduler": FIFO(metric="error")}, "scheduler: was .*'loss'.*, is .*'error'"),
    ],
)
def test_error_names_the_setting_that_differs(finished: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Tuner.resume(finished, **changes)
    assert "the experiment 'kept' can only be resumed with the same settings" in str(caught.value)


def remove(file: Path) -> None:
    file.unlink()


def open_to_others(file: Path) -> None:
    file.chmod(0o666)


def unloadable(file: Path) -> None:
    file.write_bytes(b"cnowhere\nnothing\n.")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            remove,
            r"contains no program\.pickle: pass the objective and the scheduler to Tuner\.resume\('kept', objective=",
        ),
        (open_to_others, r"others may write to it.*chmod 600"),
        (
            unloadable,
            r"cannot be loaded \(ModuleNotFoundError: No module named 'nowhere'\).*pass the objective",
        ),
    ],
)
def test_program_that_cannot_be_loaded_can_be_passed(
    finished: Path, pool: Pool, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(finished / "program.pickle")
    with pytest.raises(RecordError, match=message):
        Tuner.resume(finished)
    with pytest.raises(RecordError, match=message):
        replay_experiment(finished)
    tuner = Tuner.resume(finished, objective=train, scheduler=FIFO(metric="loss"), stop=MORE, pool=pool, quiet=True)
    assert len(tuner.run().trials) == 6


def test_program_of_another_user_is_refused(finished: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(finished / "program.pickle", 4711, 4711)
    with pytest.raises(RecordError, match="belongs to another user"):
        Tuner.resume(finished)


def test_search_of_a_missing_cluster_resumes_on_a_passed_pool(finished: Path, pool: Pool) -> None:
    save_cluster(finished, Pool(ray="127.0.0.1:1", bundles=[{"CPU": 2}])._cluster_settings)
    with pytest.raises(ClusterError, match=r"there is no Ray cluster: tried '127\.0\.0\.1:1'"):
        Tuner.resume(finished, stop=MORE, quiet=True)
    assert len(Tuner.resume(finished, stop=MORE, pool=pool, quiet=True).run().trials) == 6
    assert load_cluster(finished) == {}, "the next resume runs on this machine, too"


def test_resume_leaves_no_pool_on_a_cluster_open(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Pool] = []
    arguments = {"ray": "10.0.0.1:6379"}

    class LocalPool(Pool):
        """Stands in for a pool on a cluster."""

        def __init__(self, ray: str | None = None, **settings: object) -> None:
            super().__init__(cpus=2)
            opened.append(self)

        @property
        def cluster_settings(self) -> Mapping[str, Any]:  # Any: JSON
            return arguments

    def num_open() -> int:
        return len([pool for pool in opened if "closed" not in repr(pool)])

    save_cluster(finished, arguments)
    for module in ("tuner", "runtime.search_run"):
        monkeypatch.setattr(f"fanwise.tune.{module}.Pool", LocalPool)
    tuner = Tuner.resume(finished, stop=MORE, quiet=True)
    assert num_open() == 0
    with monkeypatch.context() as patch:
        patch.setattr(tuner._search_run, "_pack_objective", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tuner.run()
    assert num_open() == 0
    assert len(tuner.run().trials) == 6
    assert len(opened) == 2
    assert num_open() == 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (open_to_others, r"cluster\.json belongs to another user, or others may write to it"),
        (
            unloadable,
            r"cluster\.json is damaged \(Expecting value.*\)\. Pass the pool: Tuner\.resume\(\.\.\., pool=",
        ),
    ],
)
def test_invalid_cluster_file_is_refused(finished: Path, spoil: Callable[[Path], None], message: str) -> None:
    save_cluster(finished, Pool(ray="127.0.0.1:1")._cluster_settings)
    spoil(finished / "cluster.json")
    with pytest.raises(RecordError, match=message):
        Tuner.resume(finished)


@pytest.mark.parametrize(("written", "is_refused"), [([99, 0], True), ([3, 7], False)])
def test_record_of_another_major_format_is_refused(
    finished: Path, pool: Pool, written: list[int], is_refused: bool
) -> None:
    edit_meta(finished, format=written)
    if is_refused:
        with pytest.raises(RecordError, match=r"has format \[99, 0\], and this version of fanwise reads"):
            Tuner.resume(finished)
    else:
        assert len(Tuner.resume(finished, stop=MORE, pool=pool, quiet=True).run().trials) == 6


def test_error_names_a_row_of_a_newer_version_and_nothing_is_written(finished: Path, pool: Pool) -> None:
    (finished / "events.jsonl").write_bytes(
        b"".join(
            line_of(event.seq, event.t_s, "dreamt" if event.seq == 4 else event.kind, event.trial_id, event.body)
            for event in read_events(finished)
        )
    )
    before = read_events(finished)
    with pytest.raises(RecordError, match=r"event 4 \(dreamt\) of .*kept is invalid"):
        Tuner.resume(finished, pool=pool, quiet=True).run()
    assert read_events(finished) == before


def waits(x: float, epochs: int, folder: str) -> None:
    report(loss=x)
    Path(folder, "begun").touch()
    within(60.0, lambda: Path(folder, "go on").exists(), "the test is over")


def test_second_tuner_of_an_experiment_is_refused(tmp_path: Path, pool: Pool) -> None:
    first = quiet_tuner(waits, {**SPACE, "folder": str(tmp_path)}, pool=pool, name="twice", trials=1)
    thread = threading.Thread(target=first.run)
    thread.start()
    try:
        within(60.0, lambda: (tmp_path / "begun").exists(), "it runs")
        second = Tuner.resume("twice", pool=pool, quiet=True)
        with pytest.raises(RecordError, match=r"twice is being written by another tuner\. One experiment has one"):
            second.run()
        with pytest.raises(FileExistsError, match="the experiment 'twice' exists"):
            quiet_tuner(waits, {**SPACE, "folder": str(tmp_path)}, pool=pool, name="twice")
    finally:
        (tmp_path / "go on").touch()
        thread.join()
    assert load_experiment("twice").state == "finished"


EPOCHS = 60


def fill(x: float) -> None:
    place = load_checkpoint()
    reached = 0 if place is None else int((place / "epoch").read_text())
    for epoch in range(reached + 1, EPOCHS + 1):
        threading.Event().wait(0.01)
        report(loss=x, epoch=epoch, checkpoint=lambda at, epoch=epoch: (at / "epoch").write_text(str(epoch)))


def test_search_that_a_full_disk_ended_can_be_resumed(pool: Pool) -> None:
    with FullDisk(after_bytes=10_000) as disk:
        with pytest.raises(RecordError, match=r"events\.jsonl cannot be written"):
            quiet_tuner(fill, {"x": uniform(0, 1)}, pool=pool, name="full", trials=2, callbacks=[disk]).run()
    before = load_experiment("full")
    assert before.state == "crashed"
    known = len(before.results)
    assert 0 < known < 2 * EPOCHS
    experiment = Tuner.resume("full", pool=pool, quiet=True).run()
    assert list(experiment.trials["status"]) == ["Completed", "Completed"]
    assert sorted(experiment.results["epoch"]) == sorted([*range(1, EPOCHS + 1)] * 2)
    assert replay_experiment("full").differences == []


def test_checkpoint_root_that_cannot_be_written_is_refused_before_any_folder_is_created(
    tmp_path: Path, pool: Pool, home: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written to .*file/full: Not a directory"):
        search(fill, {"x": uniform(0, 1)}, pool=pool, name="full", checkpoints=tmp_path / "file", trials=1)
    assert not (home / "full").exists()
