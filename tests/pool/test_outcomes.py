"""The texts of outcomes, and the end of a job's output."""

import os
import signal
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.pool.contract import Outcome
from fanwise.pool.outcomes import explain, is_gpu_out_of_memory, signal_name
from fanwise.pool.output import last_lines, tail

GPU_OUT_OF_MEMORY = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
    "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "RuntimeError: CUDA driver error: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    "JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.0GiB (2147483648B) on device ordinal 0",
    "ResourceExhaustedError: {{function_node __wrapped__MatMul}} OOM when allocating tensor with shape[65536,65536]",
    "InternalError: failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY",
)


@pytest.mark.parametrize("text", GPU_OUT_OF_MEMORY)
def test_a_lack_of_memory_on_a_gpu_is_recognized_by_type_or_message(text: str) -> None:
    assert is_gpu_out_of_memory(text)
    assert explain(-6, last_output=f"terminate called\n{text}\n").kind == "out-of-memory"
    assert explain(-11, last_output=text).kind == "signal", "a program can catch the error and crash by another"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "RpcError: RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'requests'",
        "MemoryError",
        "ValueError: the model ran out of patience",
    ],
)
def test_other_errors_are_no_lack_of_memory_on_a_gpu(text: str) -> None:
    assert not is_gpu_out_of_memory(text)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (0, "Something called sys.exit or os._exit."),
        (1, "Something called sys.exit(1), or an exception outside the function was not caught."),
        (3, "Something called sys.exit or os._exit."),
        (137, "A shell reports SIGKILL of a program by this code."),
        (255, "Something called sys.exit or os._exit."),
    ],
)
def test_exit_codes_are_explained(code: int, hint: str) -> None:
    assert explain(code) == Outcome("exit", f"ended with exit code {code} before its function returned. {hint}")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (signal.SIGSEGV, "A crash in native code"),
        (signal.SIGBUS, "/dev/shm is full"),
        (signal.SIGABRT, "Native code aborted"),
        (signal.SIGTERM, "fanwise did not send it"),
        (signal.SIGKILL, "the kernel counted no kill for lack of memory"),
    ],
)
def test_signals_are_named_with_a_hint(number: int, hint: str) -> None:
    death = explain(-number)
    assert death.kind == "signal"
    assert death.text.startswith(f"ended by {signal.Signals(number).name}. ")
    assert hint in death.text


def test_signals_without_a_hint_are_named() -> None:
    assert [explain(-number).text.split(".")[0] for number in (1, 10, 77)] == [
        "ended by SIGHUP",
        "ended by SIGUSR1",
        "ended by signal 77",
    ]
    assert signal_name(64) in ("SIGRTMAX", "signal 64")


def test_sigkill_after_an_oom_kill_of_the_kernel_is_out_of_memory() -> None:
    assert explain(-9, ooms=1).kind == "out-of-memory"
    assert "the kernel ran out of memory and killed one process meanwhile" in explain(-9, ooms=1).text
    assert "killed 3 processes meanwhile" in explain(-9, ooms=3).text
    assert explain(-11, ooms=1).kind == "signal"
    assert explain(-9, stop_request="terminate", ooms=1).kind == "out-of-memory"


def test_native_code_without_memory_is_out_of_memory() -> None:
    output = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    assert explain(-6, last_output=output).kind == "out-of-memory"
    assert explain(-6, last_output="assertion failed").kind == "signal"


@pytest.mark.parametrize(
    ("status", "stop_request", "text"),
    [
        (-15, "terminate", "ended by SIGTERM after a stop."),
        (-15, "kill", "ended by SIGTERM after a stop."),
        (-9, "kill", "ended by SIGKILL, because it did not end in time after a stop."),
        (0, "terminate", "ended with exit code 0 after a stop."),
    ],
)
def test_an_end_after_a_stop_request_is_attributed_to_it(
    status: int, stop_request: Literal["terminate", "kill"], text: str
) -> None:
    kind = "exit" if status == 0 else "signal"
    assert explain(status, stop_request=stop_request, ooms=2) == Outcome(kind, text)  # type: ignore[arg-type]


def test_the_text_ends_with_the_last_output() -> None:
    death = explain(3, last_output="step 1\n\x1b[2Jloss nan\n\n")
    assert death.text == (
        "ended with exit code 3 before its function returned. Something called sys.exit or os._exit. Its last output:\n"
        "  | step 1\n"
        "  | \\x1b[2Jloss nan"
    )


def test_the_text_of_a_crash_mentions_a_stack_in_the_output() -> None:
    stack = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File ..."
    hint = "The Python line where it happened is in the last output, at the top of the stack."
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        assert hint in explain(-number, last_output=stack).text
        assert hint not in explain(-number, last_output="nothing").text
        assert "faulthandler" not in explain(-number).text


# -- output ------------------------------------------------------------------------------------------------------------


def test_a_progress_bar_is_reduced_to_its_last_state() -> None:
    assert last_lines("begin\r\n 10 %\r 50 %\r100 %\r\nend") == ["begin", "100 %", "end"]


def test_lines_and_characters_are_bounded() -> None:
    text = "\n".join(["first", "second", "third"])
    assert last_lines(text, max_lines=2) == ["second", "third"]
    assert last_lines(text, max_chars=9) == ["...d", "third"]
    assert last_lines(text, max_chars=8) == ["third"]
    assert last_lines("x" * 50 + "end", max_chars=10) == ["...xxxxend"]
    assert last_lines("\n \n\n") == []


@given(st.text(), st.integers(1, 10), st.integers(0, 60))
def test_bounds_hold_for_any_text(text: str, max_lines: int, max_chars: int) -> None:
    lines = last_lines(text, max_lines=max_lines, max_chars=max_chars)
    assert len(lines) <= max_lines
    assert sum(map(len, lines)) <= max_chars


def test_the_end_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)) + b"\xff\x1b[31mlast")
    assert tail(path, max_lines=3) == "line 99998\nline 99999\n\ufffd\\x1b[31mlast"
    assert tail(path, max_bytes=100, max_lines=10_000).split("\n")[:2] == ["1", "line 99992"]


def test_an_incomplete_character_at_the_beginning_of_the_tail_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    path.write_text("\u4e2d\u4e2dend", encoding="utf-8")
    assert [tail(path, max_bytes=size) for size in (4, 5, 6, 9)] == ["end", "end", "\u4e2dend", "\u4e2d\u4e2dend"]


def test_an_unreadable_file_has_no_tail(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    assert [tail(tmp_path / name) for name in ("missing", "pipe", "empty", ".")] == ["", "", "", ""]
