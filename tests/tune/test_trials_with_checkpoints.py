"""Checkpoints in an objective: a paused, crashed or killed trial with a checkpoint never starts from scratch."""

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from searches import quiet_tuner, search

from fanwise.base.errors import CheckpointError
from fanwise.pool import Pool
from fanwise.tune import (
    StoppingCriterion,
    SuccessiveHalving,
    Tuner,
    from_iter,
    load_checkpoint,
    report,
    trial_folder,
    trial_id,
    uniform,
)
from fanwise.tune.experiment import remove_experiment
from fanwise.tune.runtime.checkpoint_store import OWNER_FILE_NAME


def train(x: float, epochs: int, folder: str, spoil: str) -> None:
    """Counts on from its checkpoint, and writes down each start. Spoiled at the third epoch of the first attempt."""
    place = load_checkpoint()
    reached = 0 if place is None else int((place / "epoch").read_text())
    with open(f"{folder}/{trial_id()}", "a") as file:
        file.write(f"{reached}={from_iter()} ")
    for epoch in range(reached + 1, epochs + 1):
        if epoch == 3 and reached == 0 and spoil == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == 3 and reached == 0 and spoil == "raise":
            raise RuntimeError("spoiled")
        report(loss=x / epoch, epoch=epoch, checkpoint=lambda at, epoch=epoch: (at / "epoch").write_text(str(epoch)))


def space(tmp_path: Path, spoil: str = "", epochs: int = 4) -> Mapping[str, Any]:  # Any: domains and constants
    (tmp_path / "starts").mkdir()
    return {"x": uniform(0, 1), "epochs": epochs, "folder": str(tmp_path / "starts"), "spoil": spoil}


def starts(tmp_path: Path) -> dict[int, str]:
    return {int(path.name): path.read_text().strip() for path in (tmp_path / "starts").iterdir()}


@pytest.mark.parametrize("spoil", ["kill", "raise"])
@pytest.mark.parametrize("reuse", [False, True])
def test_crashed_trial_continues_from_its_checkpoint(tmp_path: Path, pool: Pool, spoil: str, reuse: bool) -> None:
    experiment = search(train, space(tmp_path, spoil), pool=None if reuse else pool, retries=1, trials=2, reuse=reuse)
    assert starts(tmp_path) == {0: "0=0 2=2", 1: "0=0 2=2"}
    assert list(experiment.trials["iter"]) == [4, 4]
    assert list(experiment.results["epoch"]).count(3) == 2


def test_checkpoints_on_another_file_system(tmp_path: Path, pool: Pool) -> None:
    """A `file://` URL goes the way of all URLs: written aside, copied, marked; read from a copy."""
    root = f"file://{tmp_path}/bucket"
    experiment = search(train, space(tmp_path, "kill"), pool=pool, retries=1, trials=1, checkpoints=root)
    assert starts(tmp_path) == {0: "0=0 2=2"}
    names = {path.name for path in (tmp_path / "bucket" / experiment.name).iterdir()}
    assert names == {"0-1-2", OWNER_FILE_NAME}  # the best trial's last
    assert os.listdir(experiment.path / "trials" / "0") == ["checkpoint"]


def test_relative_checkpoint_root_does_not_depend_on_the_folder_of_a_resume(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    tuner = quiet_tuner(train, space(tmp_path), pool=pool, trials=1, checkpoints="ckpt", name="lenet")
    monkeypatch.chdir("elsewhere")
    path = tuner.run().path
    assert (tmp_path / "ckpt" / "lenet" / "0-0-4").is_dir()
    stop = StoppingCriterion(max_num_trials_started=2)
    Tuner.resume("lenet", stop=stop, pool=pool, quiet=True).run()
    remove_experiment(path)
    assert list((tmp_path / "ckpt").iterdir()) == list((tmp_path / "elsewhere").iterdir()) == []


def test_search_neither_uses_nor_deletes_a_folder_of_other_programs(tmp_path: Path, pool: Pool) -> None:
    data = tmp_path / "data" / "lenet" / "2024-01-05"  # named like a checkpoint
    data.mkdir(parents=True)
    options: dict[str, Any] = {"pool": pool, "trials": 1, "name": "lenet", "checkpoints": tmp_path / "data"}
    with pytest.raises(CheckpointError, match="it has files of other programs"):
        search(train, space(tmp_path), **options)
    assert not (tmp_path / "home" / "lenet").exists()
    assert os.listdir(tmp_path / "data" / "lenet") == ["2024-01-05"]


def test_copy_of_an_experiment_does_not_resume_with_the_checkpoints_of_the_original(tmp_path: Path, pool: Pool) -> None:
    options: dict[str, Any] = {"pool": pool, "trials": 1, "name": "lenet", "checkpoints": tmp_path / "ckpt"}
    path = search(train, space(tmp_path), **options).path
    copy = shutil.copytree(path, path.with_name("copy"))
    before = sorted((tmp_path / "ckpt").rglob("*"))
    stop = StoppingCriterion(max_num_trials_started=2)
    with pytest.raises(CheckpointError, match="copy is a copy of that experiment"):
        Tuner.resume(copy, stop=stop, pool=pool, quiet=True).run()
    assert sorted((tmp_path / "ckpt").rglob("*")) == before
    moved = path.rename(path.with_name("moved"))
    shutil.rmtree(copy)
    assert len(Tuner.resume(moved, stop=stop, pool=pool, quiet=True).run().trials) == 2
    remove_experiment(moved)
    assert list((tmp_path / "ckpt").iterdir()) == []


def test_paused_trial_resumes_from_its_checkpoint(tmp_path: Path, pool: Pool) -> None:
    halving = SuccessiveHalving(metric="loss", resource_attr="epoch", max_resource_attr="epochs", reduction_factor=2)
    search(train, space(tmp_path), pool=pool, scheduler=halving, trials=8)
    fields = [text.split() for text in starts(tmp_path).values()]
    assert max(map(len, fields)) > 1
    assert all(texts == sorted(set(texts)) and texts[0] == "0=0" for texts in fields)


def spoils_its_checkpoint(folder: str, catches: bool) -> None:
    try:
        place = load_checkpoint()
    except CheckpointError as error:
        Path(folder, "said").write_text(str(error))
        if not catches:
            raise
        report(loss=0.5)
        return
    assert place is None
    report(loss=1.0, checkpoint=lambda at: (at / "state").touch())
    for path in (trial_folder().parent.parent / "checkpoints").rglob("COMPLETE"):
        path.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("catches", [True, False])
def test_error_names_a_broken_checkpoint_and_the_trial_can_start_from_scratch(
    tmp_path: Path, pool: Pool, catches: bool
) -> None:
    experiment = search(
        spoils_its_checkpoint,
        {"folder": str(tmp_path), "catches": catches},
        pool=pool,
        trials=1,
        retries=1,
        max_equal_failures=None,
    )
    log_text = (tmp_path / "said").read_text()
    assert log_text.startswith("trial 0 cannot continue: there is no complete checkpoint 0-0-1 in ")
    assert "Catch CheckpointError to begin from scratch." in log_text
    assert list(experiment.trials["status"]) == ["Completed" if catches else "Failed"]


def tells_all(x: float) -> None:
    trial_folder().joinpath("mine").write_text(str(trial_id()))
    assert (from_iter(), load_checkpoint()) == (0, None)
    assert [path.name for path in trial_folder().iterdir()] == ["mine"]
    report(loss=x)


@pytest.mark.parametrize("reuse", [False, True])
def test_trial_knows_its_id_and_folder(pool: Pool, reuse: bool) -> None:
    experiment = search(tells_all, {"x": uniform(0, 1)}, pool=None if reuse else pool, trials=5, reuse=reuse)
    assert list(experiment.trials["status"]) == ["Completed"] * 5
    for number in range(5):
        assert (experiment.path / "trials" / str(number) / "mine").read_text() == str(number)


def test_objective_outside_a_tuner_has_no_trial_and_its_checkpoint_is_discarded() -> None:
    saved: list[Path] = []
    report(loss=1.0, checkpoint=saved.append)
    assert not saved[0].exists()
    assert (trial_id(), from_iter(), load_checkpoint()) == (None, 0, None)


def test_checkpoint_that_is_not_a_function_is_an_error_with_an_example() -> None:
    with pytest.raises(TypeError, match=r"checkpoint= must be a function(.|\n)*right:  report\("):
        report(loss=1.0, checkpoint={"weights": 1})
