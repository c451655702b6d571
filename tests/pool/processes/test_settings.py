"""Invalid settings of pools and jobs are refused with their names."""

import doctest
import math
from collections.abc import Callable

import pytest
from gates import Gate
from job_functions import submitted

from fanwise.base import nearest
from fanwise.base.errors import LeaseError
from fanwise.pool import Pool, settings

NAN = math.nan
GPUS = "gpus must be a whole number of GPUs (0, 1, 2 ...) or a part of one, a float between 0 and 1 (0.5)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pool(cpu=2), "Pool has no option 'cpu'; did you mean 'cpus'?"),  # type: ignore[call-arg]
        (lambda: Pool(random_seed=2), "Pool has no option 'random_seed'; did you mean 'seed'?"),  # type: ignore[call-arg]
        (
            lambda: Pool(x=2),  # type: ignore[call-arg]
            "Pool has no option 'x'; known: 'seed', 'cpus', 'gpus', 'ray', 'bundles', 'runtime_env', 'listen', "
            "'secret_file', 'start_within_s', 'mps', 'on_oom'",
        ),
        (lambda: Pool(cpus=True), "cpus must be an int or None, got True (bool)"),
        (lambda: Pool(cpus=2.0), "cpus must be an int or None, got 2.0 (float)"),  # type: ignore[arg-type]
        (lambda: Pool(cpus=-1), "cpus must be at least 1, got -1"),
        (lambda: Pool(seed=NAN), "seed must be an int or None, got nan (float)"),  # type: ignore[arg-type]
        (lambda: Pool(gpus="0"), 'gpus is a list of names, as ["0", "1"] or their UUIDs, got \'0\''),
        (lambda: Pool(gpus=2), 'gpus is a list of names, as ["0", "1"] or their UUIDs, got 2'),  # type: ignore[arg-type]
        (lambda: Pool(gpus=[0]), 'gpus is a list of names, as ["0", "1"] or their UUIDs, got [0]'),  # type: ignore[list-item]
        (lambda: Pool(mps=1), "mps must be True or False, got 1 (int)"),  # type: ignore[arg-type]
        (lambda: Pool(seed=False), "seed must be an int or None, got False (bool)"),
        (lambda: Pool(on_oom="retry"), "on_oom must be 'fail' or 'retry_alone', got 'retry'"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_setting_of_a_pool_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"cpu": 2}, "Pool.needs has no option 'cpu'; did you mean 'cpus'?"),
        ({"retry": 2}, "Pool.needs has no option 'retry'; did you mean 'retries'?"),
        ({"cpus": True}, "cpus must be an int, got True (bool)"),
        ({"cpus": 0}, "cpus must be at least 1, got 0"),
        ({"gpus": True}, "gpus must be an int, got True (bool)"),
        ({"gpus": -1}, "gpus must be at least 0, got -1"),
        (
            {"gpus": NAN},
            f"{GPUS}, got nan",
        ),
        ({"memory": -1}, "memory must be at least 0, got -1"),
        ({"memory": 1e9}, "memory must be an int, got 1000000000.0 (float)"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"retries": True}, "retries must be an int, got True (bool)"),
        ({"retries": NAN}, "retries must be an int, got nan (float)"),
        ({"number": -1}, "number must be at least 0, got -1"),
        ({"number": 1.5}, "number must be an int or None, got 1.5 (float)"),
        ({"reuse": 1}, "reuse must be True or False, got 1 (int)"),
        ({"on_report": "print"}, "on_report must be a function or None, got 'print' (str)"),
    ],
)
def test_an_invalid_setting_of_a_job_is_refused(setting: dict[str, object], message: str) -> None:
    with Pool(cpus=1) as pool, pytest.raises((TypeError, ValueError)) as caught:
        pool.needs(**setting)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_invalid_times_are_refused_and_the_job_continues(pool: Pool, gate: Gate) -> None:
    handle = submitted(pool.submit(gate.wait))
    for grace_s in (NAN, -1, math.inf, True, "5", None):
        with pytest.raises((TypeError, ValueError), match="grace_s must be a number of seconds"):
            handle.stop(grace_s)  # type: ignore[arg-type]
    for within_s in (NAN, "5", True):
        for wait in (handle.result, handle.outcome, handle.wait_began):
            with pytest.raises((TypeError, ValueError), match="within_s must be a number of seconds or None"):
                wait(within_s)  # type: ignore[arg-type]
    gate.open()
    assert handle.result(within_s=math.inf) is None
    assert handle.result(within_s=-1) is None


@pytest.mark.parametrize(
    ("need", "message"),
    [
        ({"cpus": 3}, "3 CPUs asked for, this pool has 2."),
        ({"memory": 1 << 60}, f"{1 << 60} bytes of memory asked for, this pool has "),
    ],
)
def test_impossible_resources_are_refused_before_a_process_is_started(need: dict[str, int], message: str) -> None:
    with Pool(cpus=2) as pool:
        with pytest.raises(LeaseError) as caught:
            pool.needs(**need)  # type: ignore[arg-type]
        assert pool._life.engine is None
    assert caught.value.message.startswith(message)
    assert "The job would wait for ever, so it was refused" in caught.value.message


def test_a_pool_with_more_cpus_than_the_machine_has_a_note() -> None:
    num_cpus = Pool().machine.cpus
    with Pool(cpus=num_cpus + 3) as pool:
        note = pool.machine.notes[-1]
        assert pool.needs(cpus=num_cpus + 3) is not None
    assert note == f"The pool counts {num_cpus + 3} CPUs, and {num_cpus} were found: jobs share them and run slower."
    assert Pool(cpus=num_cpus).machine.notes == Pool().machine.notes


def test_the_examples_run() -> None:
    for module in (settings, nearest):
        assert doctest.testmod(module).failed == 0
