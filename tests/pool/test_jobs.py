"""The tree of jobs: the order in which nested jobs are ended, and when a job is finished."""

from typing import cast

from fanwise.pool.contract import JobEvents, JobRequest, Outcome
from fanwise.pool.jobs import Job
from fanwise.pool.specs import JobSpec, RuntimeEnvironment


def job(job_id: int, parent: Job | None = None) -> Job:
    spec = JobSpec(job_id, 0, 0, "", 0, "", b"", "", False, RuntimeEnvironment("", ()), None)
    nested_job = Job(cast(JobRequest, None), cast(JobEvents, None), spec, parent)
    if parent is not None:
        parent.children.append(nested_job)
    return nested_job


def end(job: Job, *, reaped: bool = True, outcome: bool = True) -> list[int]:
    job.is_reaped = reaped
    job.outcome = Outcome("returned") if outcome else None
    return [finished.id for finished in job.pop_finished()]


def test_descendants_are_listed_from_the_top_down_and_from_older_to_younger_jobs() -> None:
    root = job(1)
    first, second = job(2, root), job(3, root)
    job(6, first), job(5, second), job(4, first)
    assert [nested.id for nested in root.descendants()] == [2, 3, 4, 5, 6]


def test_job_is_finished_when_it_is_reaped_its_outcome_is_known_and_its_nested_jobs_are_finished() -> None:
    root = job(1)
    nested = job(2, root)
    assert end(nested, outcome=False) == [] and end(nested, reaped=False) == []
    assert end(root) == []
    assert end(nested) == [2, 1]
    assert root.children == []


def test_finished_job_leaves_a_running_parent_in_the_tree() -> None:
    root = job(1)
    nested = job(2, root)
    assert end(nested) == [2]
    assert end(root, reaped=False) == [] and end(root) == [1]
