"""What a notebook shows of a pool and its jobs: what they are, and how they are at this moment."""

import os
import re
import signal

from gates import Gate
from job_functions import began, submitted

from fanwise.pool import Pool
from fanwise.testing import within


def fail() -> None:
    raise ValueError("no such rate\nand more")


def test_a_job_shows_its_state_from_the_queue_to_its_end(pool: Pool, gate: Gate) -> None:
    running = began(pool.needs(cpus=2).submit(gate.wait))
    queued = submitted(pool.submit(gate.wait))
    assert repr(running) == f"<JobHandle {running.id} 'Gate.wait': running, pid {running.pid}>"
    assert repr(queued) == f"<JobHandle {queued.id} 'Gate.wait': queued>"
    gate.open(2)
    assert running.result(30) is queued.result(30) is None
    assert repr(running) == f"<JobHandle {running.id} 'Gate.wait': returned, pid {running.pid}>"


def test_a_job_that_failed_shows_why_in_one_line(pool: Pool) -> None:
    handle = submitted(pool.needs(retries=1).submit(fail))
    handle.outcome(30)
    text = f"<JobHandle {handle.id} 'fail': exception (ValueError: no such rate), pid {handle.pid}, try 2>"
    assert repr(handle) == text
    killed = submitted(pool.submit(os.kill, 0, signal.SIGKILL))
    killed.outcome(30)
    assert re.fullmatch(r"<JobHandle \d+ 'kill': signal \(ended by SIGKILL\. .{10,80}\.\.\.\), pid \d+>", repr(killed))


def test_a_pool_shows_what_it_has_and_what_its_jobs_do(gate: Gate) -> None:
    with Pool(cpus=1, seed=7) as pool:
        gpus = len(pool.machine.gpus)
        has = f"1 CPU, {gpus or 'no'} GPU{'' if gpus == 1 else 's'}"
        assert repr(pool) == f"<Pool: {has}, seed 7: not used yet>"
        first, second = began(pool.submit(gate.wait)), submitted(pool.submit(gate.wait))
        assert repr(pool) == f"<Pool: {has}, seed 7: 1 running, 1 waiting, 0 finished>"
        gate.open(2)
        first.result(30), second.result(30)
        within(10, lambda: repr(pool).endswith(": 0 running, 0 waiting, 2 finished>"), "both are shown as finished")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, repr(pool).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 1000).decode() == f"<Pool: {has}, seed 7: of another process>"
        os.close(read)
        os.close(write)
    assert repr(pool) == f"<Pool: {has}, seed 7: closed>"


def test_a_pool_and_a_job_inside_a_job_show_where_they_are(pool: Pool) -> None:
    def inside() -> list[str]:
        own = Pool()
        handle = own.submit(int)
        before = repr(handle)
        handle.result(20)
        return [repr(own), before, repr(handle)]

    handle = submitted(pool.submit(inside))
    shown, before, after = handle.result(within_s=30)
    assert shown == f"<Pool: 1 CPU, no GPUs, inside job {handle.id} 'inside'>"
    assert re.fullmatch(r"<NestedHandle \d+ 'int': not ended as far as is known>", before)
    assert re.fullmatch(r"<NestedHandle \d+ 'int': ended>", after)
