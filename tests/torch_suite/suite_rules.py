"""Which of torch's RPC tests a package in its place must pass.

    core     behaviour that a user of the API sees; all of them must pass
    compat   possible without TensorPipe, but the test pins a private name of torch, an id layout, a C++ node name or an
             exact message; counted apart
    exclude  makes no sense without TensorPipe, TorchScript, the legacy C++ profiler or CUDA, or asserts a defect

The first rule that matches "Class.test" (or the group) decides.
"""

import re

# (verdict, reason class, regex on "Class.test_name")
RULES: list[tuple[str, str, str]] = [
    # ---- exclude -----------------------------------------------------------
    (
        "exclude",
        "TORCHSCRIPT: the caller, the RRef annotation or the module is TorchScript; it only knows "
        "torch's C++ RRef/rpc builtins, and torch deprecated TorchScript in 2.11",
        r"^Jit|^RemoteModuleTest\.test_(forward_async|forward_sync)(_script)?$"
        r"|^RemoteModuleTest\..*_script$|^ThreeWorkersRemoteModuleTest\..*_script_not_supported$"
        r"|trainer_ps_torchscript_functions|async_record_function_cbs_jit_call|profiler_with_script_",
    ),
    (
        "exclude",
        "PROFILER: legacy autograd profiler carried over the wire by C++ RemoteProfilerManager; "
        "torch itself no longer supports it (pytorch/tutorials#2480)",
        r"\.test_profiler_|\.test_rpc_profiling_|server_process_global_profiler|async_record_function_"
        r"|dist_autograd_profiling",
    ),
    (
        "exclude",
        "CUDA: needs GPUs and TensorPipe device maps (run the cuda group on a GPU machine)",
        r"_cuda$|^Cuda|Cuda.*Test\.",
    ),
    (
        "exclude",
        "AGENT: asserts the C++ TensorPipeAgent class, pybind11 wording or its GIL metric",
        r"\.test_infer_backend_from_options$|mismatched_type_for_options|options_throw_on_timedelta|disable_gil_profiling",
    ),
    (
        "exclude",
        "JIT-OPS: asserts the error text of the TorchScript operator matcher (builtins are dispatched "
        "through the JIT in torch)",
        r"op_with_invalid_args",
    ),
    (
        "exclude",
        "DEFECT: asserts that backward() hangs for ever when a send function is unused",
        r"backward_unused_send_function",
    ),
    (
        "exclude",
        "TYPE: asserts that an error whose constructor takes other arguments than it passes on comes as a "
        "RuntimeError, not in its own type",
        r"custom_exception_throw_during_reconstruction",
    ),
    # ---- compat ------------------------------------------------------------
    ("compat", "FAULTY: needs a fault-injection backend that knows torch's C++ message type names", r"^Faulty"),
    (
        "compat",
        "SCRIPT-CALLEE: plain caller, but the callee is a torch.jit.ScriptFunction sent by name",
        r"stress_heavy_rpc_torchscript|wait_all_exit_early_script_function|rref_get_future|backward_simple_script_call",
    ),
    (
        "compat",
        "GRAPH: walks the autograd graph and compares C++ node names or data pointers",
        r"\.test_graph_for_|_complex_args|no_graph_with_tensors|no_grad_copy|grad_copy_sparse_indices|post_hooks",
    ),
    (
        "compat",
        "DDP: torch's C++ reducer only knows torch's own dist-autograd context",
        r"^Ddp.*\.test_(?!backward_no_ddp)",
    ),
    ("compat", "RECORD: looks for the record_function name of an internal RPC", r"test_rref_type_(non_)?blocking$"),
    (
        "compat",
        "PRIVATE: patches or calls a private function of torch.distributed.rpc",
        r"register_rpc_backend|\.test_duplicate_name$|shutdown_errors|wait_all_workers_timeout|rref_leak"
        r"|all_gather_timeout|use_rpc_pickler|py_nested_pickle|use_rref_after_shutdown|build_rpc_profiling_key"
        r"|_debug_info$|set_and_get_num_worker_threads|tensorpipe_set_default_timeout|cannot_infer_backend"
        r"|wrong_types|test_autograd_context",
    ),
    (
        "compat",
        "TEXT: pins id numbers or exact wording",
        r"local_value_not_on_owner|\.test_rref_str$|backward_invalid_args|dynamic_and_static_init_rpc_together"
        r"|dynamic_rpc_init_rpc_without_rank",
    ),
]
_RULES = [(v, why, re.compile(rx)) for v, why, rx in RULES]


def classify(group: str, test_id: str) -> tuple[str, str]:
    """The verdict of a test, and the class of the reason; no reason for core."""
    if group == "cuda":
        return "exclude", "CUDA"
    for verdict, why, rx in _RULES:
        if rx.search(test_id):
            return verdict, why.split(":")[0]
    return "core", ""
