"""`fanwise doctor`: what is here of what fanwise can use, and what to do about what is missing.

    look at the machine --check, one after another--> Finding: ok, note or wrong, with what to do --> lines, or JSON

"wrong" is what will fail, "note" what works with less. torch is loaded in a process of its own, so that one that
crashes or hangs when it is loaded is a finding too. Nothing is changed: what is tried out is removed again.
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
from ..base.plain_json import json_text
from ..base.text import printable, printable_line
from ..base.version import VERSION
from ..links.runtime_folder import runtime_folder
from ..links.shared_secret import read_secret
from ..pool import Pool
from ..pool.devices import find_machine
from ..pool.leases import Gpu
from ..pool.mps import has_users_daemon, mps_problem
from ..tune.record.lock import hold, release

State = Literal["ok", "note", "wrong"]

_GIB = 1 << 30
_OLDEST, _NEWEST = (3, 11), (3, 13)
_LEAST_SHM_BYTES, _LEAST_FREE_BYTES, _LEAST_FILES = _GIB, _GIB, 4096
_TORCH_S = 120.0

# Asked of a fresh interpreter; what it prints is the last line.
_ASK_TORCH = """
import json, torch
import torch.distributed as dist
found = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": 0, "why": "", "nccl": None}
if torch.version.cuda:
    try:
        torch.cuda.init()
        found["gpus"] = torch.cuda.device_count()
    except Exception as error:
        found["why"] = str(error)
    if dist.is_available() and dist.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""

# The name of an extra, what it is for, and the distributions that it takes.
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
    """What was found about one thing. `advice`: what to do, where there is something to do."""

    what: str
    state: State
    text: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    """All of them, as they are found; takes some seconds, most of them for torch."""
    yield python()
    yield Finding("fanwise", "ok", f"{VERSION}, in {Path(__file__).resolve().parents[1]}")
    yield from machine()
    found = ask_torch()
    yield torch_of(found)
    gpus = find_machine().gpus
    yield from gpus_of(found, [gpu.name for gpu in gpus])
    yield from mps_of(gpus)
    yield shared_memory(_free("/dev/shm"))
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield chosen_home()
    yield sockets()
    yield secret(os.environ)
    yield from ray(_version("ray"), os.environ)
    yield extras(_version)
    yield workers()


def python(version: tuple[int, int] = sys.version_info[:2], implementation: str = sys.implementation.name) -> Finding:
    """The interpreter."""
    shown = f"{platform.python_version()}, {sys.executable}"
    if version < _OLDEST or implementation != "cpython":
        return Finding("Python", "wrong", shown, f"take CPython {_dotted(_OLDEST)} to {_dotted(_NEWEST)}")
    if version > _NEWEST:
        return Finding("Python", "note", shown, f"fanwise is tested with {_dotted(_OLDEST)} to {_dotted(_NEWEST)}")
    return Finding("Python", "ok", shown)


def machine() -> Iterator[Finding]:
    """CPUs and memory that this process may use, and what is odd about them."""
    try:
        found = find_machine()
    except ValueError as error:
        yield Finding("machine", "wrong", str(error), "unset FANWISE_CPUS, or set it to a number of at least 1")
        return
    yield Finding("machine", "ok", f"{found.cpus} CPUs, {found.memory_bytes / _GIB:.1f} GiB")
    for note in found.notes:
        yield Finding("machine", "note", note)


def ask_torch(program: str = _ASK_TORCH, within_s: float = _TORCH_S) -> Mapping[str, Any] | str | None:  # Any: JSON
    """What torch says of itself; a text: why it cannot be loaded; None: there is none."""
    if _version("torch") is None:
        return None
    try:
        done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        return f"it was not loaded within {within_s:g} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        found: Mapping[str, Any] = json.loads(lines[-1])  # Any: JSON
        return found
    errors = done.stderr.strip().splitlines()
    return errors[-1] if errors else f"its process ended with status {done.returncode}"


def torch_of(found: Mapping[str, Any] | str | None) -> Finding:  # Any: JSON
    """torch, which training and rpc need."""
    if found is None:
        return Finding("torch", "note", "not installed; training and rpc need it", "pip install 'fanwise[torch]'")
    if isinstance(found, str):
        return Finding("torch", "wrong", f"cannot be loaded: {found}", "pip install --force-reinstall torch")
    return Finding("torch", "ok", f"{found['version']}, {'CUDA ' + found['cuda'] if found['cuda'] else 'without CUDA'}")


def gpus_of(found: Mapping[str, Any] | str | None, names: list[str]) -> Iterator[Finding]:  # Any: JSON
    """GPUs as the driver shows them, whether torch can use them, and NCCL."""
    if not names:
        yield Finding("GPUs", "ok", "none; trials and ranks run on CPUs")
        return
    shown = f"{len(names)}: {', '.join(sorted(set(names)))}"
    if not isinstance(found, Mapping):
        yield Finding("GPUs", "ok", shown)
        return
    if not found["cuda"]:
        yield Finding(
            "GPUs",
            "wrong",
            f"{shown}; this torch is built without CUDA and uses none of them",
            "install torch with CUDA: https://pytorch.org/get-started",
        )
    elif found["gpus"] < len(names):
        why = f" ({found['why']})" if found["why"] else ""
        yield Finding(
            "GPUs",
            "wrong",
            f"{shown}; torch sees {found['gpus']}{why}",
            "a driver that is older than this torch's CUDA is the usual reason: compare with nvidia-smi",
        )
    else:
        yield Finding("GPUs", "ok", shown)
    if found["nccl"] is not None:
        yield Finding("NCCL", "ok", found["nccl"])
    elif len(names) > 1:
        yield Finding(
            "NCCL",
            "wrong",
            "this torch has none; training on several GPUs with reduce='fast' needs it",
            "install torch with CUDA: https://pytorch.org/get-started",
        )


def mps_of(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Whether trials that share a GPU can run at the same time."""
    if gpus and (problem := mps_problem(gpus)):
        yield Finding("MPS", "note", f"trials that share a GPU take turns: {problem}")
    elif gpus and has_users_daemon(os.environ):
        yield Finding("MPS", "ok", "trials that share a GPU use the MPS daemon that is running")
    elif gpus:
        yield Finding("MPS", "ok", "trials that share a GPU run at the same time")


def shared_memory(free_bytes: int | None) -> Finding:
    """The memory through which processes of a machine exchange tensors."""
    try:
        os.close(os.memfd_create("fanwise-doctor", os.MFD_CLOEXEC))
    except OSError as error:
        return Finding(
            "shared memory", "wrong", f"cannot be made: {error.strerror}", "allow memfd_create in the sandbox"
        )
    if free_bytes is None or free_bytes < _LEAST_SHM_BYTES:
        size = "there is no /dev/shm" if free_bytes is None else f"/dev/shm has {free_bytes / (1 << 20):.0f} MiB free"
        return Finding(
            "shared memory",
            "note",
            f"{size}; torch's DataLoader workers use it, and fanwise does not",
            "in a container: docker run --shm-size=8g",
        )
    return Finding("shared memory", "ok", f"/dev/shm has {free_bytes / _GIB:.1f} GiB free")


def open_files(soft: int, hard: int) -> Finding:
    """How many files and sockets a process may have open; a tuner takes some for each worker."""
    if soft == resource.RLIM_INFINITY or soft >= _LEAST_FILES:
        return Finding("open files", "ok", "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} a process")
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return Finding(
        "open files", "note", f"{soft:,} a process; enough for some hundred workers", f"for more: ulimit -n {most}"
    )


def chosen_home() -> Finding:
    """The folder that this user has named, or not."""
    try:
        return home(experiments_folder())
    except ValueError as error:  # a URL
        what, _, advice = str(error).partition("\n")
        return Finding("home", "wrong", what, advice)


def home(folder: Path) -> Finding:
    """The folder of the experiments: whether it can be written, locked, and holds what is to come."""
    shown = f"{folder} ($FANWISE_HOME)" if os.environ.get("FANWISE_HOME") else str(folder)
    other = "set FANWISE_HOME to a folder that you may write to"
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Finding("home", "wrong", f"{shown}: {there} is no folder", other)
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".doctor-") as probe:
            held = hold(Path(probe))
            release(held)
    except OSError as error:
        cannot = f"cannot be made in {there}" if there != folder else "cannot be written"
        return Finding("home", "wrong", f"{shown} {cannot}: {error.strerror}", other)
    if there != folder:
        shown += ", which the first search makes"
    if held is None:
        return Finding("home", "note", f"{shown} has no locks", "two tuners on one experiment would not be noticed")
    free_bytes = _free(there) or 0
    shown += f"; {free_bytes / _GIB:.1f} GiB free"
    if free_bytes < _LEAST_FREE_BYTES:
        return Finding("home", "note", shown, "make room, or set FANWISE_HOME to a larger disk")
    return Finding("home", "ok", shown)


def sockets() -> Finding:
    """The folder for sockets of this user."""
    try:
        return Finding("sockets", "ok", str(runtime_folder()))
    except (FanwiseError, OSError) as error:
        said = str(error).partition("\n")[0]
        return Finding("sockets", "wrong", said, "set XDG_RUNTIME_DIR to a folder of yours with mode 0700")


def secret(environ: Mapping[str, str]) -> Finding:
    """What several hosts of a group or a run know each other by."""
    try:
        found = read_secret(environ)
    except (FanwiseError, OSError, ValueError) as error:
        return Finding("secret", "wrong", str(error).partition("\n")[0], "make one: fanwise secret --file PATH")
    if found is None:
        return Finding("secret", "ok", "none; several hosts need one (fanwise secret), this machine alone does not")
    return Finding("secret", "ok", "there is one, for several hosts")


def ray(version: str | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The engine for several machines."""
    if version is None:
        yield Finding("Ray", "ok", "not installed; only clusters need it (pip install 'fanwise[ray]')")
        return
    address = environ.get("RAY_ADDRESS")
    if address:
        yield Finding("Ray", "ok", f"{version}, RAY_ADDRESS is {address}; to try it: fanwise demo --ray {address}")
    else:
        yield Finding("Ray", "ok", f"{version}; to try the cluster of this machine: fanwise demo --ray auto")


def extras(version_of: Callable[[str], str | None]) -> Finding:
    """What is installed beside the core, and how to get the rest."""
    missing = {name: what for name, (what, needs) in _EXTRAS.items() if any(version_of(one) is None for one in needs)}
    there = [name for name in _EXTRAS if name not in missing]
    shown = f"{', '.join(there) or 'none'} installed"
    if not missing:
        return Finding("extras", "ok", shown)
    told = "; ".join(f"{name} ({what})" for name, what in missing.items())
    return Finding("extras", "note", f"{shown}; missing: {told}", f"pip install 'fanwise[{','.join(missing)}]'")


def workers() -> Finding:
    """A job in a warm worker, as every trial is one."""
    began_s = time.monotonic()
    try:
        with Pool(cpus=1) as pool:
            pool.submit(abs, -1).result(within_s=60.0)
            ready_s, job_s = time.monotonic() - began_s, time.monotonic()
            pool.submit(abs, -1).result(within_s=60.0)
            took_s = time.monotonic() - job_s
    except (FanwiseError, OSError) as error:
        said = printable(str(error)).partition("\n")[0]
        return Finding("workers", "wrong", f"a job did not run: {said}", "fanwise --debug doctor shows more")
    return Finding(
        "workers", "ok", f"the first was ready after {ready_s:.2f} s; a job in it takes {1000 * took_s:.0f} ms"
    )


def lines_of(finding: Finding) -> Iterator[str]:
    """For people."""
    yield f"{finding.state:<5}  {finding.what:<13}  {printable_line(finding.text)}"
    if finding.advice:
        yield f"{'':<5}  {'':<13}  -> {printable_line(finding.advice)}"


def as_json(found: list[Finding]) -> str:
    """For programs."""
    return json_text([asdict(finding) for finding in found])


def _version(distribution: str) -> str | None:
    for name in (distribution, f"{distribution}-cpu"):  # as tensorflow-cpu, the same library
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _free(place: str | Path) -> int | None:
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
