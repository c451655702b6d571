"""A small part of torch's own RPC tests, against fanwise.rpc. `make test-torch-suite` runs all that must pass.

In `make soak`: whoever runs the whole suite has run these, and what they are about has tests of its own beside this.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# One or two of each area: calls, futures, references, the end, autograd, the optimizer, remote modules.
TESTS = (
    *("RpcTest.test_py_tensors_multi_async_call", "RpcTest.test_wait_all_exit_early_python"),
    *("RpcTest.test_async_function_nested", "RpcTest.test_nested_rref_stress", "RpcTest.test_rref_proxy_class"),
    *("RpcTest.test_graceful_shutdown_with_uneven_workload", "RpcTest.test_handle_send_exceptions"),
    *("DistAutogradTest.test_backward_complex_python_udf", "DistAutogradTest.test_context_cleanup_nested_rpc"),
    *("DistOptimizerTest.test_dist_optim", "RemoteModuleTest.test_remote_parameters"),
    "TensorPipeAgentRpcTest.test_multi_rpc_sparse",
)


@pytest.mark.soak
def test_a_part_of_torchs_own_tests_passes(repository: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [sys.executable, repository / "tests/torch_suite/run.py", "--impl", "fanwise.rpc", "--retries", "0"]
    command += ["--groups", "generic,tensorpipe", "--match", f"^({'|'.join(TESTS)})$", "--json", results]
    command += ["--start", "fork", "--jobs", "1"]  # one interpreter loads all of it
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {result["id"]: result["status"] for result in json.loads(results.read_text())["results"]}
    assert found == dict.fromkeys(TESTS, "pass")
