"""Checkpoints: a training in pieces, on changing numbers of devices, ends with the bits of one in a single piece."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from classification import losses, same
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run

# N: samples, B: samples of a global batch
N, B, EPOCHS = 33, 12, 3
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(2))


class Ended(Exception):
    """The process ends here."""


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))


def train(run: Run, path: Path, end_after: int = 1000) -> list[Tensor]:
    """Save and end after `end_after` batches of this process."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    run.keep(scheduler=scheduler)
    step = run.step(model, optimizer, losses)
    chance = 0.0
    for epoch in run.epochs(EPOCHS):
        torch.rand(3)  # drawn once more by a process that resumes in the middle of an epoch
        for batch in run.batches((X, Y), B):
            if end_after == 0:
                run.save(path)
                raise Ended
            end_after -= 1
            step(batch)
            chance = float(torch.rand(()))  # the program's own random numbers continue too
        scheduler.step()
        run.report(epoch=epoch, chance=chance, executions=run.executions)
    rows = torch.tensor([[float(value) for value in row.values()] for row in run.rows])
    return [*model.state_dict().values(), rows]


@pytest.mark.parametrize("ends", [[1], [5], [4], [0, 3, 5], [8]], ids=str)
def test_a_training_continues_in_the_middle_of_an_epoch(ends: list[int], tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    whole = functools.partial(train, path=path)
    expected = fanwise.run(whole, devices=1, shards=4)
    resume = None
    for end in ends:
        with pytest.raises(Ended):
            fanwise.run(functools.partial(whole, end_after=end), devices=1, shards=4, resume=resume)
        resume = path
    assert same(expected, fanwise.run(whole, devices=1, resume=resume))


def test_an_object_that_is_kept_after_a_resume_leaves_the_learning_rate_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"

    def decays(run: Run) -> float:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        step = run.step(model, optimizer, losses)
        for epoch in run.epochs(4):
            optimizer.param_groups[0]["lr"] = 0.5 / 2**epoch
            if epoch == 2:
                run.keep(swa=torch.optim.swa_utils.SWALR(optimizer, 0.01))
            for batch in run.batches((X, Y), B):
                step(batch)
            if epoch == 0:
                run.save(path)
            if epoch == 2:
                return float(optimizer.param_groups[0]["lr"])
        raise AssertionError

    assert fanwise.run(decays, devices=1) == 0.125
    assert fanwise.run(decays, devices=1, resume=path) == 0.125


def saved(path: Path, **options: Any) -> Path:  # Any: of fanwise.run
    with pytest.raises(Ended):
        fanwise.run(functools.partial(train, path=path, end_after=2), **options)
    return path


def test_plain_torch_load_reads_a_checkpoint(tmp_path: Path) -> None:
    content = torch.load(saved(tmp_path / "run.pt", devices=1), weights_only=True)
    names = {"format", "run", "model", "optimizer", "step", "kept", "rows", "random"}
    assert set(content) == names
    assert list(content["model"])[:2] == ["0.weight", "0.bias"]
    assert set(content["kept"]) == {"scheduler"}
    assert (content["run"]["shards"], content["run"]["threads"], content["run"]["seed"]) == (4, 1, 0)
    nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)).load_state_dict(
        content["model"]
    )


def test_shards_threads_and_seed_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.pt", shards=5, seed=7, threads=2)
    actual = fanwise.run(lambda run: (run.shards, run.seed, run.threads, torch.get_num_threads()), resume=path)
    assert actual == (5, 7, 2, 2)


@pytest.mark.parametrize("name", ["shards", "seed", "threads"])
def test_other_shards_seeds_and_threads_are_refused(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "run.pt", shards=5, seed=7, threads=2)
    with pytest.raises(ValueError, match=rf"the run has {name}=3, but its checkpoint .* Leave out {name}="):
        fanwise.run(lambda run: None, resume=path, **{name: 3})  # type: ignore[arg-type]  # one of three


def test_a_checkpoint_keeps_how_gradients_are_added(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.pt", reduce="fast")
    with pytest.raises(
        ValueError,
        match=r"the run has reduce='exact', but its checkpoint .*run\.pt has reduce='fast'\. Pass reduce='fast'\.",
    ):
        fanwise.run(lambda run: None, resume=path)
    again = tmp_path / "again.pt"
    fanwise.run(lambda run: run.save(again), resume=path, reduce="fast")
    here = fanwise.here()  # nobody has given reduce=
    here.restore(again)
    here.save(path)
    assert torch.load(path)["run"]["reduce"] == "fast"


def test_what_is_kept_but_not_yet_registered_stays_in_the_next_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.pt")
    again = tmp_path / "again.pt"
    fanwise.run(lambda run: run.save(again), resume=path)
    first, second = torch.load(path), torch.load(again)
    assert first["run"] == second["run"]
    assert first["kept"]["scheduler"] == second["kept"]["scheduler"]
    assert all(torch.equal(value, second["model"][name]) for name, value in first["model"].items())


def test_restore_also_works_after_the_model_was_registered(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.pt")
    run = fanwise.here()
    model = network()
    step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01), losses)
    run.restore(path)
    assert torch.equal(model[0].weight, torch.load(path)["model"]["0.weight"])  # type: ignore[arg-type]  # a module
    assert step.batches == 2


def test_a_finished_training_has_no_epochs_left(tmp_path: Path) -> None:
    def whole(run: Run) -> tuple[int, int]:
        epochs = batches = 0
        for _ in run.epochs(2):
            epochs += 1
            batches += len(list(run.batches((X, Y), B)))
            run.save(tmp_path / "run.pt")
        return epochs, batches

    assert fanwise.run(whole) == (2, 6)
    assert fanwise.run(whole, resume=tmp_path / "run.pt") == (0, 0)


def test_restore_comes_before_the_first_epoch(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.pt")
    run = fanwise.here()
    list(run.batches((X, Y), B))
    with pytest.raises(ValueError, match=r"run\.restore was called after run\.epochs or run\.batches"):
        run.restore(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    with pytest.raises(FileNotFoundError, match=r"other\.pt"):
        fanwise.run(lambda run: None, resume=path)
    torch.save({"model": {}}, path)
    with pytest.raises(ValueError, match=r"other\.pt was not written by run\.save"):
        fanwise.run(lambda run: None, resume=path)
    path.write_bytes(b"not a file of torch")
    with pytest.raises(ValueError, match=r"other\.pt"):
        fanwise.run(lambda run: None, resume=path)


class Odd:
    """Keeps an object that only unpickling can make."""

    def __init__(self) -> None:
        self.value: object = None

    def state_dict(self) -> Any:  # Any: on purpose
        return {"path": Path("x")}

    def load_state_dict(self, state: Any) -> None:  # Any: as above
        self.value = state["path"]


def test_objects_of_other_types_are_loaded_on_request_only(tmp_path: Path) -> None:
    run = fanwise.here()
    run.keep(odd=Odd())
    path = run.save(tmp_path / "run.pt")
    with pytest.raises(ValueError, match=r"run\.restore\(path, weights_only=False\) loads it"):
        fanwise.here().restore(path)
    again, odd = fanwise.here(), Odd()
    again.restore(path, weights_only=False)
    again.keep(odd=odd)
    assert odd.value == Path("x")
