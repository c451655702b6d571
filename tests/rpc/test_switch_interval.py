"""The interpreter's switch interval is shortened while a process is a worker, and a setting of the user's stays."""

import sys

import pytest
from rpc_workers import Workers

import fanwise.rpc as rpc
from fanwise.rpc.agent import SWITCH_INTERVAL_S


def intervals_s(before_s: float, meanwhile_s: float | None) -> tuple[float, float]:
    """Return the interval of a worker, and afterwards."""
    sys.setswitchinterval(before_s)
    options = rpc.TensorPipeRpcBackendOptions(init_method="file:///switches")
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    of_worker_s = sys.getswitchinterval()
    if meanwhile_s is not None:
        sys.setswitchinterval(meanwhile_s)
    rpc.shutdown()
    return of_worker_s, sys.getswitchinterval()


@pytest.mark.parametrize(
    ("before_s", "meanwhile_s", "of_worker_s", "after_s"),
    [
        (0.005, None, SWITCH_INTERVAL_S, 0.005),
        (0.0001, None, 0.0001, 0.0001),
        (0.005, 0.02, SWITCH_INTERVAL_S, 0.02),
    ],
)
def test_the_interval_is_short_in_a_worker_and_as_before_or_as_set_afterwards(
    real_workers: Workers, before_s: float, meanwhile_s: float | None, of_worker_s: float, after_s: float
) -> None:
    worker = real_workers.start("alone")
    assert worker.do(intervals_s, before_s, meanwhile_s) == pytest.approx((of_worker_s, after_s), abs=2e-6)
