"""Hosts that join and are lost, as the engine sees them: real jobs, and links in memory that a test can end."""

import functools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_contract import Heard
from memory_hosts import MemoryHosts, memory_pool

from fanwise.pool.contract import JobRequest
from fanwise.pool.functions import pack
from fanwise.pool.leases import Resources
from fanwise.pool.outcomes import value_of
from fanwise.testing import within


@pytest.fixture
def hosts() -> Iterator[MemoryHosts]:
    life, hosts = memory_pool(cpus=(1, 2), patience_s=0.3)
    yield hosts
    life.close()


def submit(hosts: MemoryHosts, function: object, *, cpus: int = 1, output: str | None = None) -> Heard:
    """Submit a job on the loop's thread. Return a record of its events."""
    events, done = Heard(hosts.engine), threading.Event()
    request = JobRequest(pack(function), Resources(cpus=cpus), output=output)  # type: ignore[arg-type]

    def do() -> None:
        hosts.engine.submit(request, events)
        done.set()

    hosts.engine.loop.call_soon(do)
    assert done.wait(10)
    return events


def waits() -> None:
    threading.Event().wait()


def wait_for(*jobs: Heard, event: str) -> None:
    within(30, lambda: all(event in job.story for job in jobs), f"{event} of {len(jobs)} jobs")


def test_the_jobs_of_a_lost_host_end_as_lost_once_and_name_it_and_the_others_go_on(hosts: MemoryHosts) -> None:
    jobs = [submit(hosts, waits) for _ in range(3)]
    wait_for(*jobs, event="ready")
    hosts.lose("host-2")
    lost = [job for job in jobs if job.ready[0].node.endswith("node host-2)")]
    assert len(lost) == 2
    wait_for(*lost, event="free")
    for job in lost:
        assert job.story == ["ready", "ended", "free"]
        assert job.outcomes[0].kind == "lost"
        assert "it was lost with its node, " in job.outcomes[0].text and "node host-2)" in job.outcomes[0].text
    (other,) = [job for job in jobs if job not in lost]
    assert other.story == ["ready"] and hosts.engine.capacity().cpus == 1


def test_a_host_that_joins_is_used_at_once_by_jobs_that_wait(hosts: MemoryHosts) -> None:
    jobs = [submit(hosts, waits) for _ in range(5)]
    wait_for(*jobs[:3], event="ready")
    hosts.add(2)
    wait_for(*jobs, event="ready")


def test_a_job_that_no_host_can_run_any_more_is_given_up_and_holds_up_nobody(hosts: MemoryHosts) -> None:
    hosts.lose("host-2")
    within(10, lambda: len(hosts.engine.hosts) == 1, "the loss is known")
    big, small = submit(hosts, int, cpus=2), submit(hosts, int)
    wait_for(big, small, event="free")
    assert big.story == ["ended", "free"] and big.outcomes[0].kind == "lost"
    assert "2 CPUs asked for, this pool has 1" in big.outcomes[0].text
    assert small.outcomes[0].kind == "returned"


def test_a_node_that_does_not_see_where_output_is_kept_keeps_it_as_long_as_the_job_is_there(
    hosts: MemoryHosts, tmp_path: Path
) -> None:
    job = submit(hosts, prints, output=str(tmp_path / "gone" / "output" / "0"))
    wait_for(job, event="free")
    assert job.outcomes[0].kind == "returned" and not (tmp_path / "gone").exists()
    assert job.printed[-1].out == "printed there"


def prints() -> None:
    print("printed there", flush=True)


def reads(file: str) -> str:
    return Path(file).read_text()


def exits() -> None:
    os._exit(3)


def test_a_failure_names_the_node_in_the_error_that_is_raised_and_in_what_is_told(hosts: MemoryHosts) -> None:
    data = functools.partial(reads, "/data/that/is/elsewhere")
    raised, left = submit(hosts, data), submit(hosts, exits)
    wait_for(raised, left, event="free")
    outcome = raised.outcomes[0]
    assert outcome.kind == "exception" and outcome.text.startswith("FileNotFoundError: ")
    assert re.search(r"elsewhere'\n\(on node .*, node host-[12]\)\)\n$", outcome.traceback)
    with pytest.raises(FileNotFoundError) as caught:
        value_of(outcome)
    assert re.search(r"\(on node .*, node host-[12]\)\)$", caught.value.__notes__[-1])
    told = left.outcomes[0]
    assert told.kind == "exit" and re.match(r"ended with exit code 3 .*\n\(on node .*, node host-[12]\)\)$", told.text)
