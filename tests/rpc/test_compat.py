"""torch's private names: they are there, and lead to what they say."""

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import Workers

import fanwise.rpc as rpc
from fanwise.rpc import torch_compat

# Any: what functions of torch's interface take and return.


# One is of the legacy profiler; the other is there only inside of `_wait_all`, as in torch.
NOT_THERE = ["_server_process_global_profile", "api._thread_local_var.future_list"]


def lacking(script: Path) -> str:
    """What the script prints. It replaces torch's modules in its process."""
    os.environ["RPC_SUITE_GROUPS"] = "faulty"
    sys.argv[:] = [str(script), "--impl", "fanwise.rpc"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def test_no_name_is_missing_that_torchs_tests_touch(repository: Path, real_workers: Workers) -> None:
    script = repository / "tests/torch_suite/api_surface.py"
    lines = real_workers.start("alone").do(lacking, script).splitlines()
    assert [line.strip() for line in lines[1:]] == [f"torch.distributed.rpc.{name}" for name in NOT_THERE]
    assert int(lines[0].split()[0]) > 70


def test_names_come_through_the_package() -> None:
    assert rpc._all_gather is torch_compat._all_gather
    assert (rpc.PyRRef, rpc.RpcAgent) == (rpc.RRef, rpc.TensorPipeAgent)
    with pytest.raises(AttributeError, match=r"module 'fanwise.rpc' has no attribute '_no_such_name'"):
        _ = rpc._no_such_name


def about_the_agent() -> dict[str, Any]:
    agent = torch_compat._get_current_rpc_agent()
    info = rpc._get_debug_info()
    return {
        "is_agent": isinstance(agent, rpc.TensorPipeAgent),
        "is_set": rpc._is_current_rpc_agent_set(),
        "me": agent.get_worker_info().name,
        "other": agent.get_worker_info("w1").id,
        "all": [worker.name for worker in agent.get_worker_infos()],
        "threads": info["agent.thread_pool_size"],
        "owners": info["num_owner_rrefs"],
        "contexts": info["num_autograd_contexts"],
    }


def test_the_agent_has_the_methods_of_torchs(real_workers: Workers) -> None:
    one, _two = real_workers.group(2, num_worker_threads=5)
    found = one.do(about_the_agent)
    assert found == {
        "is_agent": True,
        "is_set": True,
        "me": "w0",
        "other": 1,
        "all": ["w0", "w1"],
        "threads": "5",
        "owners": "0",
        "contexts": "0",
    }


def replaced_steps(rref_to: str) -> list[str]:
    """A graceful shutdown with parts replaced, as torch's programs do it."""
    kept = rpc.remote(rref_to, torch.ones, args=(1,))
    calls: list[str] = []
    compat: Any = torch_compat
    compat._wait_all_workers = lambda timeout: calls.append(f"wait {timeout}")
    compat._delete_all_user_and_unforked_owner_rrefs = lambda: calls.append("delete")
    compat._ignore_rref_leak = False
    try:
        rpc.shutdown(timeout=30.0)
    except RuntimeError as error:
        calls.append(str(error).split(" Globally")[0])
    del kept
    return calls


def test_parts_of_the_shutdown_can_be_replaced(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.begin(replaced_steps, "w1")
    assert two.do(replaced_steps, "w0") == ["wait 30.0", "delete", "Leaking RRef"]
    assert one.result() == ["wait 30.0", "delete", "Leaking RRef"]


def default_timeout() -> tuple[float, float]:
    rpc._set_rpc_timeout(7)
    before = rpc.get_rpc_timeout()
    with pytest.raises(ValueError, match="at least 0 seconds"):
        rpc._set_rpc_timeout(-3.0)
    return before, rpc.get_rpc_timeout()


def test_the_default_timeout_is_set(real_workers: Workers) -> None:
    assert real_workers.join(0, 1).do(default_timeout) == (7.0, 7.0)


def test_profiling_keys_are_torchs() -> None:
    key = torch_compat._build_rpc_profiling_key(torch_compat.RPCExecMode.ASYNC, "f", "a", "b")
    assert key == "rpc_async#f(a -> b)"
