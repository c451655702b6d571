"""The commands `fanwise devices` and `fanwise doctor`: the resources of this machine, and checks with advice.

Each check yields findings with a state: "ok", "note" (works with limitations) or "wrong" (will fail). torch is imported
in another process, so that a crash or hang of the import is a finding, too. Nothing on the machine is changed.
"""

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..base.errors import FanwiseError
from ..base.home import experiments_folder
from ..base.plain_json import attributes, json_text
from ..base.text import printable, printable_line
from ..base.version import VERSION
from ..links.runtime_folder import runtime_folder
from ..links.shared_secret import read_secret
from ..pool import Pool
from ..pool.devices import find_machine
from ..pool.leases import Gpu
from ..pool.mps import has_users_daemon, mps_problem
from ..tune.record.lock import hold, release
from .console import table_lines

State = Literal["ok", "note", "wrong"]

_GIB = 1 << 30
_MIN_SHM_BYTES, _MIN_FREE_BYTES, _MIN_FILES = _GIB, _GIB, 4096
_TORCH_TIMEOUT_S = 120.0

# Prints a JSON object in the last line.
_TORCH_PROGRAM = """
import json, torch
import torch.distributed as dist
facts = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": 0, "error": "", "nccl": None}
if torch.version.cuda:
    try:
        torch.cuda.init()
        facts["gpus"] = torch.cuda.device_count()
    except Exception as error:
        facts["error"] = str(error)
    if dist.is_available() and dist.is_nccl_available():
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(facts))
"""

# {extra: (purpose, distributions)}
_EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "forest": ("the searcher forest, and importances", ("scikit-learn",)),
    "rpc": ("remote calls, training, links between hosts", ("torch", "cryptography")),
    "board": ("fanwise board, Tuner(board=True)", ("starlette", "uvicorn", "plotly")),
    "optuna": ("Optuna's samplers, and Experiment.to_optuna()", ("optuna",)),
    "jax": ("trees of JAX arrays in training and rpc", ("jax",)),
    "tensorflow": ("trees of TensorFlow's tensors in training and rpc", ("tensorflow",)),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. `subject`: name of the check. `advice`: how to solve a problem."""

    subject: str
    state: State
    text: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    """Yield all findings. Takes a few seconds, mostly for the import of torch."""
    yield Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield Finding("fanwise", "ok", f"{VERSION}, in {Path(__file__).resolve().parents[1]}")
    yield from machine()
    info = torch_info()
    yield check_torch(info)
    gpus = find_machine().gpus
    yield from check_gpus(info, [gpu.name for gpu in gpus])
    yield from check_mps(gpus)
    yield shared_memory(_free("/dev/shm"))
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield home()
    yield sockets()
    yield secret(os.environ)
    yield ray(_version("ray"), os.environ)
    yield extras(_version)
    yield workers()


def machine() -> Iterator[Finding]:
    try:
        resources = find_machine()
    except ValueError as error:
        yield Finding("machine", "wrong", str(error), "unset FANWISE_CPUS, or set it to a number of at least 1")
        return
    yield Finding("machine", "ok", f"{resources.cpus} CPUs, {_gib(resources.memory_bytes)}")
    for note in resources.notes:
        yield Finding("machine", "note", note)


def torch_info(program: str = _TORCH_PROGRAM, within_s: float = _TORCH_TIMEOUT_S) -> Mapping[str, Any] | str | None:
    """Return facts about torch, the reason as text if it cannot be imported, or None if it is not installed."""
    if _version("torch") is None:
        return None
    try:
        done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        return f"it was not imported within {within_s:g} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        info: Mapping[str, Any] = json.loads(lines[-1])
        return info
    errors = done.stderr.strip().splitlines()
    return errors[-1] if errors else f"the process ended with status {done.returncode}"


def check_torch(info: Mapping[str, Any] | str | None) -> Finding:
    if info is None:
        return Finding("torch", "note", "not installed; training and rpc need it", "pip install 'fanwise[torch]'")
    if isinstance(info, str):
        return Finding("torch", "wrong", f"cannot be imported: {info}", "pip install --force-reinstall torch")
    return Finding("torch", "ok", f"{info['version']}, {'CUDA ' + info['cuda'] if info['cuda'] else 'without CUDA'}")


def check_gpus(info: Mapping[str, Any] | str | None, names: list[str]) -> Iterator[Finding]:
    """Check whether torch can use the GPUs, and NCCL. `names`: of the GPUs that the driver reports."""
    install = "install torch with CUDA: https://pytorch.org/get-started"
    if not names:
        yield Finding("GPUs", "ok", "none; trials and ranks run on CPUs")
        return
    shown = f"{len(names)}: {', '.join(sorted(set(names)))}"
    if not isinstance(info, Mapping):
        yield Finding("GPUs", "ok", shown)
        return
    if not info["cuda"]:
        yield Finding("GPUs", "wrong", f"{shown}; torch was built without CUDA and cannot use them", install)
    elif info["gpus"] < len(names):
        shown += f"; torch sees {info['gpus']}" + (f" ({info['error']})" if info["error"] else "")
        advice = "the driver may be too old for the CUDA version of torch: compare with nvidia-smi"
        yield Finding("GPUs", "wrong", shown, advice)
    else:
        yield Finding("GPUs", "ok", shown)
    if info["nccl"] is not None:
        yield Finding("NCCL", "ok", info["nccl"])
    elif len(names) > 1:
        yield Finding("NCCL", "wrong", "torch has no NCCL, which training on several GPUs needs", install)


def check_mps(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Check whether trials that share a GPU can run at the same time."""
    if gpus and (problem := mps_problem(gpus)):
        yield Finding("MPS", "note", f"trials that share a GPU take turns: {problem}")
    elif gpus and has_users_daemon(os.environ):
        yield Finding("MPS", "ok", "trials that share a GPU use the MPS daemon that is running")
    elif gpus:
        yield Finding("MPS", "ok", "trials that share a GPU run at the same time")


def shared_memory(free_bytes: int | None) -> Finding:
    """Check the memory through which processes of a machine exchange tensors."""
    try:
        os.close(os.memfd_create("fanwise-doctor", os.MFD_CLOEXEC))
    except OSError as error:
        problem = f"cannot be created: {error.strerror}"
        return Finding("shared memory", "wrong", problem, "allow memfd_create in the sandbox")
    size = "there is no /dev/shm" if free_bytes is None else f"/dev/shm has {_gib(free_bytes)} free"
    if free_bytes is None or free_bytes < _MIN_SHM_BYTES:
        size += "; workers of torch's DataLoader need it"
        return Finding("shared memory", "note", size, "in a container: docker run --shm-size=8g")
    return Finding("shared memory", "ok", size)


def open_files(soft: int, hard: int) -> Finding:
    """Check how many open files a process may have. A tuner needs some for each worker."""
    if soft == resource.RLIM_INFINITY or soft >= _MIN_FILES:
        return Finding("open files", "ok", "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} per process")
    limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return Finding(
        "open files", "note", f"{soft:,} per process; enough for a few hundred workers", f"for more: ulimit -n {limit}"
    )


def home() -> Finding:
    """Check whether the folder can be written to, supports locks, and has free space."""
    try:
        folder = experiments_folder()
    except ValueError as error:  # a URL
        message, _, advice = str(error).partition("\n")
        return Finding("home", "wrong", message, advice)
    shown = f"{folder} ($FANWISE_HOME)" if os.environ.get("FANWISE_HOME") else str(folder)
    advice = "set FANWISE_HOME to a folder that you can write to"
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return Finding("home", "wrong", f"{shown}: {existing} is not a folder", advice)
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".doctor-") as probe:
            lock_fd = hold(Path(probe))
            release(lock_fd)
    except OSError as error:
        problem = f"cannot be created in {existing}" if existing != folder else "cannot be written to"
        return Finding("home", "wrong", f"{shown} {problem}: {error.strerror}", advice)
    if existing != folder:
        shown += ", which the first search creates"
    if lock_fd is None:
        return Finding("home", "note", f"{shown} has no locks", "two tuners of one experiment are not detected")
    free_bytes = _free(existing) or 0
    shown += f"; {_gib(free_bytes)} free"
    if free_bytes < _MIN_FREE_BYTES:
        return Finding("home", "note", shown, "free some space, or set FANWISE_HOME to a larger disk")
    return Finding("home", "ok", shown)


def sockets() -> Finding:
    try:
        return Finding("sockets", "ok", str(runtime_folder()))
    except (FanwiseError, OSError) as error:
        message = str(error).partition("\n")[0]
        return Finding("sockets", "wrong", message, "set XDG_RUNTIME_DIR to a folder that you own, with mode 0700")


def secret(environ: Mapping[str, str]) -> Finding:
    """Check the secret with which several hosts authenticate each other."""
    try:
        value = read_secret(environ)
    except (FanwiseError, OSError, ValueError) as error:
        return Finding("secret", "wrong", str(error).partition("\n")[0], "create one: fanwise secret --file PATH")
    if value is None:
        return Finding("secret", "ok", "none; needed only for several hosts (fanwise secret)")
    return Finding("secret", "ok", "set, for several hosts")


def ray(version: str | None, environ: Mapping[str, str]) -> Finding:
    if version is None:
        return Finding("Ray", "ok", "not installed; only clusters need it (pip install 'fanwise[ray]')")
    return Finding("Ray", "ok", f"{version}; to try it: fanwise demo --ray {environ.get('RAY_ADDRESS') or 'auto'}")


def extras(version_of: Callable[[str], str | None]) -> Finding:
    missing = {
        extra: purpose
        for extra, (purpose, distributions) in _EXTRAS.items()
        if any(version_of(name) is None for name in distributions)
    }
    shown = f"{', '.join(extra for extra in _EXTRAS if extra not in missing) or 'none'} installed"
    if not missing:
        return Finding("extras", "ok", shown)
    purposes = "; ".join(f"{extra} ({purpose})" for extra, purpose in missing.items())
    return Finding("extras", "note", f"{shown}; missing: {purposes}", f"pip install 'fanwise[{','.join(missing)}]'")


def workers() -> Finding:
    began_s = time.monotonic()
    try:
        with Pool(cpus=1) as pool:
            pool.submit(abs, -1).result(within_s=60.0)
            ready_s, job_s = time.monotonic() - began_s, time.monotonic()
            pool.submit(abs, -1).result(within_s=60.0)
            took_s = time.monotonic() - job_s
    except (FanwiseError, OSError) as error:
        message = printable(str(error)).partition("\n")[0]
        return Finding("workers", "wrong", f"a job did not run: {message}", "fanwise --debug doctor shows more")
    return Finding("workers", "ok", f"the first was ready after {ready_s:.2f} s; a job takes {1000 * took_s:.0f} ms")


def lines_of(finding: Finding) -> Iterator[str]:
    """Yield a finding as lines of text."""
    yield f"{finding.state:<5}  {finding.subject:<13}  {printable_line(finding.text)}"
    if finding.advice:
        yield f"{'':<5}  {'':<13}  -> {printable_line(finding.advice)}"


def findings_json(results: Sequence[Finding]) -> str:
    return json_text([asdict(finding) for finding in results])


def device_lines() -> list[str]:
    """Return the CPUs, memory and GPUs of this machine, one per line, and notes."""
    machine = find_machine()
    rows = [("CPUs", str(machine.cpus)), ("memory", _gib(machine.memory_bytes))]
    rows += [(f"GPU {gpu.index}", f"{gpu.name}, {_gib(gpu.memory_bytes)}, {gpu.uuid}") for gpu in machine.gpus]
    if machine.gpus:
        problem = mps_problem(machine.gpus)
        rows.append(("MPS", f"cannot be used: {problem}" if problem else "can be used"))
    else:
        rows.append(("GPUs", "none"))
    return [*table_lines(rows), *(f"note: {note}" for note in machine.notes)]


def devices_json() -> str:
    """Return `device_lines` as JSON."""
    machine = find_machine()
    gpus = [attributes(gpu, "index", "name", "memory_bytes", "uuid") for gpu in machine.gpus]
    return json_text({**attributes(machine, "cpus", "memory_bytes", "notes"), "gpus": gpus})


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _version(distribution: str) -> str | None:
    for name in (distribution, f"{distribution}-cpu"):  # for example tensorflow-cpu
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _free(path: str | Path) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
