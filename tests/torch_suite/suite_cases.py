"""The test classes: torch's, with a fixture and our way to start processes.

Imported by the driver's workers, by the fork server (which has it loaded before it forks) and by spawned children;
importing it puts the package in the place of torch's modules. The environment says what to build: RPC_SUITE_IMPL,
RPC_SUITE_GROUPS, RPC_SUITE_START, RPC_SUITE_BACKEND, RPC_SUITE_LOGDIR, RPC_SUITE_JIT.
"""

import importlib
import os
import sys
import unittest
import warnings
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import suite_alias

warnings.filterwarnings("ignore")
IMPL = os.environ.get("RPC_SUITE_IMPL", "torch")
_START = os.environ.get("RPC_SUITE_START", "forkserver")
_LOGDIR = os.environ.get("RPC_SUITE_LOGDIR", "")
_BACKEND = os.environ.get("RPC_SUITE_BACKEND", "")
_WANTED = set(filter(None, os.environ.get("RPC_SUITE_GROUPS", "generic").split(",")))
_WITH_JIT = os.environ.get("RPC_SUITE_JIT", "1" if IMPL == "torch" else "0") == "1"

INFO = suite_alias.install(IMPL)
_restore: Callable[[], None] = suite_alias.tolerant_jit_script() if IMPL != "torch" else lambda: None

import torch  # noqa: E402  # not before the package is in its place
from torch.testing._internal.common_distributed import MultiProcessTestCase  # noqa: E402

_TESTS = "torch.testing._internal.distributed."
# (group, module, classes); the groups of torch.testing._internal.distributed.rpc_utils
_GROUPS = [
    ("generic", "rpc.rpc_test", ["RpcTest"]),
    ("generic", "rpc.examples.parameter_server_test", ["ParameterServerTest"]),
    ("generic", "rpc.dist_autograd_test", ["DistAutogradTest"]),
    ("generic", "rpc.dist_optimizer_test", ["DistOptimizerTest"]),
    ("generic", "nn.api.remote_module_test", ["RemoteModuleTest", "ThreeWorkersRemoteModuleTest"]),
    ("generic", "ddp_under_dist_autograd_test", ["DdpUnderDistAutogradTest", "DdpComparisonTest"]),
    ("generic", "rpc.examples.reinforcement_learning_rpc_test", ["ReinforcementLearningRpcTest"]),
    ("jit", "rpc.jit.rpc_test", ["JitRpcTest"]),
    ("jit", "rpc.jit.dist_autograd_test", ["JitDistAutogradTest"]),
    ("tensorpipe", "rpc.rpc_test", ["TensorPipeAgentRpcTest"]),
    ("tensorpipe", "rpc.dist_autograd_test", ["TensorPipeAgentDistAutogradTest"]),
    ("faulty", "rpc.faulty_agent_rpc_test", ["FaultyAgentRpcTest"]),
    ("faulty", "rpc.dist_autograd_test", ["FaultyAgentDistAutogradTest"]),
    ("faulty-jit", "rpc.jit.rpc_test_faulty", ["JitFaultyAgentRpcTest"]),
    ("cuda", "rpc.rpc_test", ["CudaRpcTest", "TensorPipeAgentCudaRpcTest"]),
    ("cuda", "rpc.dist_autograd_test", ["CudaDistAutogradTest", "TensorPipeCudaDistAutogradTest"]),
    ("cuda", "nn.api.remote_module_test", ["CudaRemoteModuleTest"]),
    ("cuda", "ddp_under_dist_autograd_test", ["CudaDdpComparisonTest"]),
]

CASES: dict[str, type[unittest.TestCase]] = {}
IMPORT_ERRORS: dict[str, str] = {}
_group_of: dict[str, str] = {}


class Launcher(MultiProcessTestCase):
    """Starts the processes of a test as RPC_SUITE_START says, each with a log of its own."""

    def setUp(self) -> None:
        super().setUp()
        context: Any = torch.multiprocessing.get_context(_START)  # Any: the three kinds of context
        self._start_processes(context.Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:  # Any: torch's
        if _LOGDIR:
            path = os.path.join(_LOGDIR, f"{cls.__name__}.{test_name}.rank{rank}.log")
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)


def _backend_name(rpc: Any, said: dict[str, str]) -> str:  # Any: the package
    try:
        names = [backend.name for backend in rpc.backend_registry.BackendType]
    except Exception as error:
        INFO["no_backend_type"] = repr(error)
        names = ["?"]
    return _BACKEND or said.get("backend", "") or ("TENSORPIPE" if "TENSORPIPE" in names else names[0])


def _plain_fixture() -> type:
    import torch.distributed.rpc as rpc
    from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture

    said: dict[str, str] = dict(getattr(rpc, "__rpc_suite__", {}) or {}) if IMPL != "torch" else {}
    name = _backend_name(rpc, said)
    if name == "TENSORPIPE":
        module = importlib.import_module(f"{_TESTS}rpc.tensorpipe_rpc_agent_test_fixture")
        fixture: type = module.TensorPipeRpcAgentTestFixture
        return fixture
    registry: Any = rpc.backend_registry  # Any: not annotated

    class Fixture(RpcAgentTestFixture):
        """For a package that has another backend."""

        @property
        def rpc_backend(self) -> Any:  # Any: the package's
            return registry.BackendType[name]

        @property
        def rpc_backend_options(self) -> Any:  # Any: the package's
            return registry.construct_rpc_backend_options(self.rpc_backend, init_method=self.init_method)

        def get_shutdown_error_regex(self) -> str:
            return said.get("shutdown_error_regex", ".*")

        def get_timeout_error_regex(self) -> str:
            return said.get("timeout_error_regex", "RPC ran for more than")

    return Fixture


def _faulty_fixture() -> type | None:
    try:
        module = importlib.import_module(f"{_TESTS}rpc.faulty_rpc_agent_test_fixture")
    except Exception as error:
        INFO["no_fault_injection"] = repr(error)
        return None
    fixture: type = module.FaultyRpcAgentTestFixture
    return fixture


def _build() -> None:
    plain = _plain_fixture()
    faulty = _faulty_fixture() if any(group.startswith("faulty") for group in _WANTED) else None
    for group, name, classes in _GROUPS:
        fixture = faulty if group.startswith("faulty") else plain
        if group not in _WANTED or fixture is None or ("jit" in group and not _WITH_JIT):
            continue
        try:
            module = importlib.import_module(_TESTS + name)
        except Exception as error:
            IMPORT_ERRORS[name] = repr(error)
            continue
        for class_name in classes:
            bases = (getattr(module, class_name), fixture, Launcher)
            case = type(class_name, bases, {"__module__": __name__})
            globals()[class_name] = CASES[class_name] = case  # pickle looks for it here
            _group_of[class_name] = group


_build()
_restore()


def all_ids() -> list[tuple[str, str]]:
    """(group, "Class.test") of every test that was built."""
    names = unittest.TestLoader().getTestCaseNames
    return [(_group_of[name], f"{name}.{test}") for name, case in CASES.items() for test in names(case)]
