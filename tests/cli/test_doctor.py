"""The findings of the doctor, with their advice."""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanwise.cli import doctor, main
from fanwise.cli.doctor import Finding, device_lines, lines_of
from fanwise.pool.leases import Gpu, Machine

# Any: JSON

CPU_TORCH: dict[str, Any] = {"version": "2.13.0", "cuda": None, "gpus": 0, "error": "", "nccl": None}
CUDA_TORCH: dict[str, Any] = {**CPU_TORCH, "cuda": "13.0", "gpus": 2, "nccl": "2.29"}


@pytest.mark.parametrize(
    ("program", "info"),
    [
        ("print('loading'); print('{\"version\": \"9\"}')", {"version": "9"}),
        ("raise ImportError('libcudart.so.13: no such file')", "ImportError: libcudart.so.13: no such file"),
        ("import os; os.kill(os.getpid(), 11)", "the process ended with status -11"),
        ("import threading; threading.Event().wait()", "it was not imported within 1 s"),
    ],
)
def test_a_torch_that_fails_to_load_is_a_finding(program: str, info: object) -> None:
    within_s = 1.0 if "wait" in program else 30.0
    assert doctor.torch_info(program, within_s) == info


def test_torch_is_reported_with_its_cuda_version() -> None:
    assert doctor.check_torch(CPU_TORCH) == Finding("torch", "ok", "2.13.0, without CUDA")
    assert doctor.check_torch(CUDA_TORCH).text == "2.13.0, CUDA 13.0"
    assert doctor.check_torch("ImportError: x").state == "wrong"
    assert doctor.check_torch(None).advice == "pip install 'fanwise[torch]'"


def states(info: object, names: list[str]) -> list[tuple[str, str]]:
    return [(one.subject, one.state) for one in doctor.check_gpus(info, names)]  # type: ignore[arg-type]


def test_gpus_that_torch_does_not_use_are_wrong() -> None:
    two = ["H100", "H100"]
    assert states(CPU_TORCH, []) == [("GPUs", "ok")]
    assert states(CUDA_TORCH, two) == [("GPUs", "ok"), ("NCCL", "ok")]
    assert states(CPU_TORCH, two) == [("GPUs", "wrong"), ("NCCL", "wrong")]
    assert states({**CUDA_TORCH, "gpus": 0, "error": "driver too old"}, two) == [("GPUs", "wrong"), ("NCCL", "ok")]
    assert states(None, two) == [("GPUs", "ok")]
    (finding, _) = doctor.check_gpus({**CUDA_TORCH, "gpus": 1, "error": "driver too old"}, two)
    assert "torch sees 1 (driver too old)" in finding.text


def test_mps_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, old = (Gpu(0, "GPU-1", name, 1 << 30, "GPU-1", number) for name, number in (("H100", (9, 0)), ("K80", (3, 7))))
    program = tmp_path / "nvidia-cuda-mps-control"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert list(doctor.check_mps([])) == []
    assert [(one.state, "is not on PATH" in one.text) for one in doctor.check_mps([gpu])] == [("note", True)]
    program.touch(mode=0o755)
    assert [one.state for one in doctor.check_mps([gpu])] == ["ok"]
    assert [(one.state, "compute capability 3.7" in one.text) for one in doctor.check_mps([old])] == [("note", True)]
    monkeypatch.setattr("fanwise.cli.doctor.find_machine", lambda: Machine(4, 1 << 30, (gpu,)))
    assert device_lines()[-1] == "MPS     can be used"
    program.unlink()
    assert device_lines()[-1].startswith("MPS     cannot be used: nvidia-cuda-mps-control is not on PATH")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert "use the MPS daemon that is running" in next(doctor.check_mps([gpu])).text


def test_small_limits_are_noted() -> None:
    assert doctor.shared_memory(64 << 20).advice.endswith("docker run --shm-size=8g")
    assert doctor.shared_memory(None).text.startswith("there is no /dev/shm")
    assert doctor.shared_memory(8 << 30).state == "ok"
    assert doctor.open_files(1024, 65536).advice == "for more: ulimit -n 65536"
    assert doctor.open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY).text == "no limit"


def home_at(folder: object, monkeypatch: pytest.MonkeyPatch) -> Finding:
    monkeypatch.setenv("FANWISE_HOME", str(folder))
    return doctor.home()


def test_a_home_is_tested_and_left_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home_at(tmp_path, monkeypatch).state == "ok" and list(tmp_path.iterdir()) == []
    later = home_at(tmp_path / "later" / "home", monkeypatch)
    assert later.state == "ok" and "which the first search creates" in later.text and list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert home_at(tmp_path / "file", monkeypatch).state == "wrong"
    assert home_at(tmp_path / "file" / "home", monkeypatch).state == "wrong"
    assert "/proc/none ($FANWISE_HOME) cannot be created in /proc: " in home_at("/proc/none", monkeypatch).text


def test_a_url_as_home_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = home_at("s3://bucket/home", monkeypatch)
    assert finding.state == "wrong" and finding.text.startswith("FANWISE_HOME='s3://bucket/home'")


def test_a_small_home_and_one_without_locks_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finding_with(name: str, value: Callable[[Any], object]) -> Finding:
        with monkeypatch.context() as patch:
            patch.setattr(doctor, name, value)
            return home_at(tmp_path, patch)

    advice = finding_with("_free", lambda place: 1 << 20).advice
    assert advice == "free some space, or set FANWISE_HOME to a larger disk"
    assert finding_with("hold", lambda folder: None).text == f"{tmp_path} ($FANWISE_HOME) has no locks"


def test_an_invalid_secret_and_runtime_folder_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.secret({}).state == "ok"
    assert doctor.secret({"FANWISE_SECRET": "short"}).state == "wrong"
    monkeypatch.setattr(doctor, "runtime_folder", lambda: (_ for _ in ()).throw(OSError("read-only")))
    assert doctor.sockets().state == "wrong"


def test_missing_libraries_are_reported_with_their_extra() -> None:
    assert doctor.extras(lambda name: "1").state == "ok"
    finding = doctor.extras(lambda name: None if name in ("uvicorn", "optuna") else "1")
    assert finding.advice == "pip install 'fanwise[board,optuna]'" and "board (fanwise board" in finding.text
    assert doctor.extras(lambda name: None if name == "scikit-learn" else "1").advice == "pip install 'fanwise[forest]'"
    assert (doctor.ray(None, {})).text.startswith("not installed")
    assert "fanwise demo --ray 10.0.0.1:6379" in (doctor.ray("2.60", {"RAY_ADDRESS": "10.0.0.1:6379"})).text


def test_a_finding_is_printed_with_its_advice() -> None:
    assert list(lines_of(Finding("home", "wrong", "no\nfolder", "make it"))) == [
        "wrong  home           no\\nfolder",
        "                      -> make it",
    ]


@pytest.mark.parametrize("json_wanted", [False, True])
def test_the_command_checks_this_machine(
    json_wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    (home if json_wanted else tmp_path).mkdir(exist_ok=True)
    if not json_wanted:
        home.touch()
    monkeypatch.setenv("FANWISE_HOME", str(home))
    monkeypatch.setattr(doctor, "torch_info", lambda: CPU_TORCH)  # the test of its own loads it
    monkeypatch.setattr(sys, "argv", ["fanwise", "doctor", *(["--json"] if json_wanted else [])])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr().out
    if json_wanted:
        states = {one["subject"]: one["state"] for one in json.loads(output)}
        assert states["home"] == states["workers"] == states["sockets"] == "ok"
    else:
        assert ended.value.code == 1
        assert f"wrong  home           {home} ($FANWISE_HOME): {home} is not a folder" in output
