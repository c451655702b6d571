"""Pool(on_oom="retry_alone"): a job that runs out of memory on its share of a GPU is repeated with the whole GPU."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from gates import Gate
from job_functions import began, local_engine, submitted

from fanwise.pool import JobHandle, Pool
from fanwise.pool.contract import Outcome
from fanwise.pool.current import current
from fanwise.testing import within
from fanwise.tune import FIFO, StoppingCriterion, Tuner, choice, load_experiment, report

GPU = "GPU-00000000-stand-in"


class OutOfMemoryError(RuntimeError):
    """A substitute for torch's error."""


def has_share() -> bool:
    return "XLA_PYTHON_CLIENT_MEM_FRACTION" in os.environ  # set for a job with less than a whole GPU


def needs_more_than_a_share() -> str:
    if has_share():
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 60.00 GiB.")
    return "done"


def never_has_enough() -> None:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def has_too_little_host_memory() -> None:
    raise MemoryError


def exclusive(folder: Path, function: Callable[[], object]) -> object:
    """Call `function` and fail if this job has a whole GPU and another job runs."""
    mark = folder / f"job-{current().id}"
    mark.touch()
    try:
        other_jobs = [path for path in folder.glob("job-*") if path != mark]
        assert has_share() or not other_jobs, f"it has a whole GPU, and {other_jobs} run"
        return function()
    finally:
        mark.unlink()


def pool_with(on_oom: str = "retry_alone") -> Pool:
    return Pool(cpus=4, gpus=[GPU], seed=1, mps=False, on_oom=on_oom)  # type: ignore[arg-type]


def outcome(handle: object) -> Outcome:
    assert isinstance(handle, JobHandle)
    return handle.outcome(within_s=60)


def test_a_job_that_needs_more_than_its_share_gets_the_whole_gpu() -> None:
    with pool_with() as pool:
        handle = submitted(pool.needs(gpus=0.5).submit(needs_more_than_a_share))
        assert (handle.result(within_s=60), handle.attempt) == ("done", 1)
        assert local_engine(pool).ledger.free().gpus[0].fraction == 1.0


def test_by_default_it_fails() -> None:
    with pool_with("fail") as pool:
        handle = submitted(pool.needs(gpus=0.5).submit(needs_more_than_a_share))
        ended = handle.outcome(within_s=60)
        assert (ended.kind, ended.retry_alone, handle.attempt) == ("out-of-memory", False, 0)


@pytest.mark.parametrize(
    ("function", "gpus", "retried"),
    [(never_has_enough, 0.5, 1), (never_has_enough, 1, 0), (has_too_little_host_memory, 0.5, 0)],
)
def test_the_second_failure_is_final_and_only_a_share_of_a_gpu_can_grow(
    function: Callable[[], None], gpus: float, retried: int
) -> None:
    with pool_with() as pool:
        handle = submitted(pool.needs(gpus=gpus).submit(function))
        assert (handle.outcome(within_s=60).kind, handle.attempt) == ("out-of-memory", retried)


@pytest.mark.parametrize("reuse", [False, True])
def test_it_waits_for_the_other_jobs_of_the_gpu_and_later_jobs_do_not_overtake_it(
    reuse: bool, tmp_path: Path, gate: Gate
) -> None:
    with pool_with() as pool:
        needs = pool.needs(gpus=0.25, reuse=reuse)
        running = [began(needs.submit(exclusive, tmp_path, gate.wait)) for _ in range(2)]
        larger = submitted(needs.submit(exclusive, tmp_path, needs_more_than_a_share))
        within(60, lambda: larger.attempt == 1 and larger.queued(), "it is queued again")
        later = [submitted(needs.submit(exclusive, tmp_path, has_share)) for _ in range(4)]
        assert all(handle.queued() for handle in later), "though there is room for two of them"
        gate.open(2)
        assert larger.result(within_s=60) == "done"
        assert [handle.result(within_s=60) for handle in later] == [True] * 4
        assert all(outcome(handle).kind == "returned" for handle in running)


def test_a_trial_is_retried_with_the_whole_gpu_and_the_record_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path))

    def train(size: str) -> None:
        if size == "huge" or (size == "large" and has_share()):
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 60.00 GiB.")
        report(loss=1.0)

    points = [{"size": size} for size in ("small", "large", "huge")]
    fifo = FIFO("grid", metric="loss", points_to_evaluate=points, random_seed=0)
    space = {"size": choice(["small", "large", "huge"])}
    stop = StoppingCriterion(max_num_trials_started=3)
    with pool_with() as pool:
        Tuner(train, space, fifo, stop, n_workers=2, devices_per_trial=0.5, pool=pool, name="oom", quiet=True).run()
    experiment = load_experiment("oom")
    assert list(experiment.trials["status"]) == ["Completed", "Completed", "Failed"]
    reason = experiment.reason(2)
    assert reason is not None and reason.kind == "out-of-memory" and "CUDA out of memory" in reason.text
    rows = (tmp_path / "oom" / "events.jsonl").read_text()
    assert rows.count('"alone":true') == 2, "the second attempts of two trials"
