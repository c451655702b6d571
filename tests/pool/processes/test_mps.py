"""MPS with a substitute for NVIDIA's program, mps_stand_in.py."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from job_functions import began, local_engine, submitted

from fanwise.links.process_state import stat_of
from fanwise.pool import Pool, mps
from fanwise.pool import pool as pool_module
from fanwise.pool.leases import Gpu, Machine
from fanwise.pool.processes import all_pids, tag_of
from fanwise.pool.runtime_environment import MPS_VARIABLES
from fanwise.testing import within

STAND_IN = Path(__file__).with_name("mps_stand_in.py")
GPU = "GPU-00000000-stand-in"
GIB = 1 << 30
GONE_WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the substitute on PATH, and hide a daemon of this machine."""
    path = tmp_path / "bin" / mps.PROGRAM
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable} -SE\n{STAND_IN.read_text()}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(mps, "_DEFAULT_PIPE_FOLDER", tmp_path / "none")
    for name in MPS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return path


def connect() -> tuple[dict[str, str], int]:
    """Become a client of the daemon. Return the variables of MPS and the pid of the server, or 0."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("CUDA_MPS")}
    if "CUDA_MPS_PIPE_DIRECTORY" not in variables:
        return variables, 0
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.path.join(variables["CUDA_MPS_PIPE_DIRECTORY"], "control"))
        connection.sendall(f"client {os.getpid()}".encode())
        return variables, int(connection.recv(100))


def connect_and_wait(gate: Path) -> tuple[dict[str, str], int]:
    connected = connect()
    within(600, gate.exists, "the test opens the gate")
    return connected


def send_command(pipe_folder: str, line: str) -> str:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe_folder}
    done = subprocess.run([mps.PROGRAM], input=line, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def daemons_of(pool: Pool) -> list[int]:
    """Return the processes with the tag of the pool's MPS daemon."""
    line = local_engine(pool).worker_set.interpreters.lineage
    return [pid for pid in all_pids() if tag_of(pid) == f"{line}/mps"]


def test_jobs_with_a_share_are_clients_of_one_server_that_ends_with_the_pool(tmp_path: Path) -> None:
    with Pool(cpus=2, gpus=[GPU], seed=1) as pool:
        jobs = [began(pool.needs(gpus=0.5).submit(connect_and_wait, tmp_path / "gate")) for _ in range(2)]
        folder = pool._life.folder
        within(30, lambda: len(send_command(str(folder / "mps1"), "ps\n").split()) == 2, "both are clients")
        assert {int(pid) for pid in send_command(str(folder / "mps1"), "ps\n").split()} == {job.pid for job in jobs}
        (tmp_path / "gate").touch()
        (first, server), (second, second_server) = (job.result(60) for job in jobs)
        assert server == second_server and first == second == {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps1")}
        assert sorted(daemons_of(pool)) == sorted([server, stat_of(server).parent])
        assert (folder / "mps1").stat().st_mode & 0o777 == 0o700
        assert (folder / "mps1.log" / "control.log").read_text().split()[-1] == GPU
        daemons = daemons_of(pool)
        warm = local_engine(pool).worker_set._warm
    assert not any(stat_of(pid).is_running for pid in daemons)
    with Pool(cpus=2, gpus=[GPU], seed=1) as pool:
        assert pool.needs(gpus=0.5).submit(connect).result(60)[1] not in (0, server)
        assert local_engine(pool).worker_set._warm is warm, "the warm process is kept"


def test_jobs_with_a_whole_gpu_or_none_start_no_daemon() -> None:
    with Pool(cpus=2, gpus=[GPU], seed=1) as pool:
        assert pool.needs(gpus=1).submit(connect).result(60) == ({}, 0)
        assert pool.submit(connect).result(60) == ({}, 0)
        assert daemons_of(pool) == []


def test_a_share_limits_the_memory_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(4, 64 * GIB, (Gpu(0, GPU, "H100", 80 * GIB, GPU, (9, 0)),))
    monkeypatch.setattr(pool_module, "find_machine", lambda: machine)
    with Pool(seed=1) as pool:
        variables, server = pool.needs(gpus=0.25).submit(connect).result(60)
        assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={20 * 1024}M" and server
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20")
    with Pool(seed=1) as pool:
        variables, _ = pool.needs(gpus=0.25).submit(connect).result(60)
        assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1G", "the user's value"
        assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"


@pytest.mark.parametrize("how", ["variable", "default"])
def test_a_daemon_of_the_user_is_used_and_not_stopped(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": place, "CUDA_MPS_LOG_DIRECTORY": place}
        with subprocess.Popen([mps.PROGRAM, "-f"], env=environment) as users:
            try:
                within(30, lambda: mps.is_answering(Path(place)), "it listens")
                if how == "variable":
                    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", place)
                monkeypatch.setattr(mps, "_DEFAULT_PIPE_FOLDER", Path(place))
                with Pool(cpus=1, gpus=[GPU], seed=1) as pool:
                    variables, server = pool.needs(gpus=0.5).submit(connect).result(60)
                    assert variables.get("CUDA_MPS_PIPE_DIRECTORY") == (place if how == "variable" else None)
                    assert not server or stat_of(server).parent == users.pid
                    assert daemons_of(pool) == []
                assert users.poll() is None and mps.is_answering(Path(place))
                send_command(place, "quit\n")
                assert users.wait(30) == 0
            finally:
                users.kill()


# -- where it cannot be used -------------------------------------------------------------------------------------------


def test_mps_false_starts_no_daemon_and_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Pool(cpus=1, gpus=[GPU], seed=1, mps=False) as pool:
        assert pool.needs(gpus=0.5).submit(connect).result(60) == ({}, 0)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("missing", "nvidia-cuda-mps-control is not on PATH; it comes with the NVIDIA driver"),
        ("fail", "ended with status 1, with the log line 'Failed to start: insufficient permissions'"),
        ("deaf", "did not open its socket within 0.5 s, with the log line 'daemon"),
        ("broken", "nvidia-cuda-mps-control could not be started: "),
    ],
)
def test_one_warning_says_why_jobs_take_turns(
    mode: str, reason: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if mode == "missing":
        stand_in.unlink()
    elif mode == "broken":
        stand_in.write_text("#!/nonexistent/interpreter\n")
    monkeypatch.setenv("FANWISE_TEST_MPS", mode)
    monkeypatch.setattr(mps, "_READY_S", 0.5)
    with Pool(cpus=2, gpus=[GPU], seed=1) as pool:
        jobs = [pool.needs(gpus=0.5).submit(connect) for _ in range(3)]
        assert [job.result(60) for job in jobs] == [({}, 0)] * 3
    lines = [line for line in caplog.messages if "take turns" in line]
    assert len(lines) == 1 and reason in lines[0]


def test_old_gpus_and_mig_instances_cannot_be_shared_under_mps() -> None:
    def problem(**changes: object) -> str:
        values = {"index": 1, "uuid": GPU, "name": "P100", "memory_bytes": GIB, "visible": GPU, **changes}
        return mps.mps_problem([Gpu(**values)])  # type: ignore[arg-type]

    assert problem() == "" and problem(compute_capability=(7, 0)) == ""
    assert "GPU 1 (P100) has compute capability 6.0" in problem(compute_capability=(6, 0))
    assert problem(visible="MIG-1") == "GPU 1 is in MIG mode"


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_daemon_that_does_not_quit_is_killed_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_TEST_MPS", "stubborn")
    with Pool(cpus=1, gpus=[GPU], seed=1) as pool:
        _, server = pool.needs(gpus=0.5).submit(connect).result(60)
        daemon, folder = stat_of(server).parent, pool._life.folder
    assert not stat_of(server).is_running and not stat_of(daemon).is_running and not folder.exists()


def test_a_daemon_that_is_killed_is_replaced_for_the_next_job(caplog: pytest.LogCaptureFixture) -> None:
    with Pool(cpus=1, gpus=[GPU], seed=1) as pool:
        _, server = pool.needs(gpus=0.5).submit(connect).result(60)
        os.kill(stat_of(server).parent, signal.SIGKILL)
        within(30, lambda: "the MPS daemon" in caplog.text, "the pool knows")
        assert not stat_of(server).is_running, "the server has no daemon"
        variables, new_server = pool.needs(gpus=0.5).submit(connect).result(60)
        assert new_server != server and variables["CUDA_MPS_PIPE_DIRECTORY"].endswith("/mps2")


@pytest.mark.parametrize("victims", ["supervisor", "guard", "guard and supervisor"])
def test_the_daemon_of_a_killed_supervisor_is_replaced_for_the_next_job(victims: str) -> None:
    with Pool(cpus=1, gpus=[GPU], seed=1) as pool:
        _, server = pool.needs(gpus=0.5).submit(connect).result(60)
        interpreters = local_engine(pool).worker_set.interpreters
        assert interpreters._supervisor_link is not None and interpreters._guard is not None
        pids = {"supervisor": interpreters._supervisor_link.peer.pid, "guard": interpreters._guard.pid}
        for victim in victims.split(" and "):
            os.kill(pids[victim], signal.SIGKILL)
        within(GONE_WITHIN_S, lambda: not stat_of(server).is_running, "the server has ended")
        _, new_server = pool.needs(gpus=0.5).submit(connect).result(60)
        assert stat_of(new_server).is_running


def test_a_share_of_a_gpu_needs_no_torch_with_cuda() -> None:
    import torch  # not at the top, because jobs of the other tests would import it

    if torch.version.cuda is not None:
        pytest.skip("needs a torch without CUDA")

    def uses_torch() -> int:
        return int(torch.ones(3).sum())

    with Pool(cpus=1, gpus=[GPU], seed=1) as pool:
        assert pool.needs(gpus=0.5).submit(uses_torch).result(60) == 3


# -- faults that clients share -----------------------------------------------------------------------------------------

FAULT = "CUDA error: unspecified launch failure"


def fail_together(folder: Path, count: int, text: str = FAULT) -> str:
    """Wait for `count` jobs and raise `text`. Return in the second attempt."""
    (folder / f"{os.getpid()}.client").touch()
    within(60, lambda: len(list(folder.glob("*.client"))) >= count, "all are there")
    if len(list(folder.glob("*.client"))) == count:
        (folder / f"{os.getpid()}.failing").touch()
        within(60, lambda: len(list(folder.glob("*.failing"))) == count, "all fail")
        raise RuntimeError(text)
    return "second attempt"


def test_jobs_that_fail_together_by_a_cuda_error_are_repeated_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(cpus=2, gpus=[GPU], seed=1) as pool:
        jobs = [submitted(pool.needs(gpus=0.5).submit(fail_together, tmp_path, 2)) for _ in range(2)]
        assert [(job.result(60), job.attempt) for job in jobs] == [("second attempt", 1)] * 2
    assert caplog.text.count("is repeated: RuntimeError: CUDA error") == 2
    assert "Another job may have caused this" in caplog.text


def always_fail(folder: Path) -> None:
    (folder / f"{os.getpid()}.client").touch()
    within(60, lambda: len(list(folder.glob("*.client"))) >= 2, "the other is there")
    raise RuntimeError(FAULT)


def test_a_job_with_a_cuda_error_of_its_own_fails_the_second_time(tmp_path: Path) -> None:
    with Pool(cpus=2, gpus=[GPU], seed=1) as pool:
        jobs = [submitted(pool.needs(gpus=0.5).submit(always_fail, tmp_path)) for _ in range(2)]
        for job in jobs:
            with pytest.raises(RuntimeError, match=FAULT):
                job.result(60)
            assert (job.outcome().kind, job.attempt) == ("gpu-fault", 1)


@pytest.mark.parametrize(
    ("needs", "text", "kind"),
    [
        ({"gpus": 0.5}, "CUDA error: out of memory", "out-of-memory"),
        ({"gpus": 0.5}, "no such file", "exception"),
        ({}, FAULT, "exception"),
    ],
)
def test_other_errors_and_other_jobs_are_not_repeated(
    needs: dict[str, float], text: str, kind: str, tmp_path: Path
) -> None:
    with Pool(cpus=2, gpus=[GPU], seed=1) as pool:
        pool.needs(gpus=0.25).submit(connect_and_wait, tmp_path / "gate")
        job = submitted(pool.needs(**needs).submit(fail_together, tmp_path, 1, text))  # type: ignore[arg-type]
        assert (job.outcome(60).kind, job.attempt) == (kind, 0)
