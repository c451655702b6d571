"""The CPUs, memory and GPUs of this machine that this process may use, and the kernel's count of OOM kills.

The smallest limit counts, because a container or batch job often gets less than the machine has. NVML lists GPUs
without creating a CUDA context. GPUs are identified by their UUIDs, which are the same in every process; their numbers
depend on CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES.

CUDA_VISIBLE_DEVICES is parsed as by CUDA and torch (`torch.cuda._parse_visible_devices`): the first entry decides
between numbers and UUIDs; UUIDs may be unique prefixes; an unknown entry ends the list; a duplicate entry empties it. A
card in MIG mode represents all its instances, which are separate devices.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..links.memory_limits import cgroup_folders, memory_bytes, number_after, read_text
from .leases import Gpu as Gpu
from .leases import Machine as Machine

_ROOT = Path("/")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel, the same on every Linux


Nvml = Any  # the module `pynvml`, or a substitute


def find_machine(environ: Mapping[str, str] = os.environ, root: Path = _ROOT, nvml: Nvml | None = None) -> Machine:
    """Return the machine within the limits of this process.

    Args:
        environ: source of CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and FANWISE_CPUS, which overrides the number of CPUs.
        root: parent folder of /proc and /sys.

    Raises:
        ValueError: FANWISE_CPUS is not a number of at least 1.
    """
    cpus, cpu_notes = _cpus(environ, root)
    gpus, gpu_notes = _gpus(environ, nvml)
    return Machine(cpus, memory_bytes(root), gpus, (*cpu_notes, *gpu_notes))


def ooms_so_far(root: Path = _ROOT) -> int:
    """Return the number of processes that the kernel has killed for lack of memory, to compare with an earlier one.

    Counted in our cgroup if possible, because the machine's count includes unrelated processes. 0 without a count.
    """
    for folder in cgroup_folders(root, "memory"):
        for file in ("memory.events", "memory.oom_control"):
            if (count := number_after(read_text(folder / file), "oom_kill")) is not None:
                return count
    return number_after(read_text(root / "proc/vmstat"), "oom_kill") or 0


@contextmanager
def opened(nvml: Nvml | None = None) -> Iterator[Nvml]:
    """Initialize NVML for the duration of the block. Cheap if nested. Raises NVMLError or ImportError."""
    nvml = nvml or _pynvml()
    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _pynvml() -> Nvml:
    import pynvml

    return pynvml


def gpu_pids(visible: str, nvml: Nvml | None = None, root: Path = _ROOT) -> set[int] | None:
    """Return the pids of processes with a CUDA context on this GPU (`Gpu.visible`), or None if unknown.

    They are unknown in a PID namespace (a container), where NVML returns pids of the host or none at all.
    """
    try:
        if os.readlink(root / "proc/self/ns/pid") != _INITIAL_PID_NAMESPACE:
            return None
    except OSError:
        return None
    processes = _query_gpu(visible, nvml, lambda lib, handle: lib.nvmlDeviceGetComputeRunningProcesses(handle))
    return None if processes is None else {process.pid for process in processes}


def gpu_memory_used(visible: str, nvml: Nvml | None = None) -> int | None:
    """Return the memory in use on this GPU (`Gpu.visible`) in bytes, or None if unknown."""
    memory = _query_gpu(visible, nvml, lambda lib, handle: lib.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else int(memory.used)


def _query_gpu(visible: str, nvml: Nvml | None, query: Callable[[Nvml, Any], Any]) -> Any:
    nvml = nvml or _pynvml()
    try:
        with opened(nvml) as lib:
            return query(lib, lib.nvmlDeviceGetHandleByUUID(visible))
    except nvml.NVMLError:
        return None


# -- CPUs and memory ---------------------------------------------------------------------------------------------------


def _cpus(environ: Mapping[str, str], root: Path) -> tuple[int, list[str]]:
    available = min(_cpu_limits(root))
    override = environ.get("FANWISE_CPUS", "").strip()
    if not override:
        return available, []
    if not override.isdecimal() or int(override) < 1:
        raise ValueError(f"FANWISE_CPUS must be a whole number of at least 1, got {override!r}")
    notes = [f"FANWISE_CPUS={override} is more than the {available} found."] if int(override) > available else []
    return int(override), notes


def usable_cpus(environ: Mapping[str, str] = os.environ, root: Path = _ROOT) -> int:
    """Return the number of CPUs of `find_machine`."""
    return _cpus(environ, root)[0]


def _cpu_limits(root: Path) -> list[int]:
    """Return the number of CPUs in the affinity mask, which includes cpusets, and all quotas of cgroups."""
    listed = re.search(r"^Cpus_allowed_list:\s*(\S+)", read_text(root / "proc/self/status"), re.MULTILINE)
    ends = [] if listed is None else [part.split("-") for part in listed[1].split(",")]
    limits = [sum(int(end[-1]) - int(end[0]) + 1 for end in ends) or os.cpu_count() or 1]
    for folder in cgroup_folders(root, "cpu"):
        both = f"{read_text(folder / 'cpu.cfs_quota_us')} {read_text(folder / 'cpu.cfs_period_us')}"
        for text in (read_text(folder / "cpu.max"), both):
            match text.split():
                case [quota, period] if quota.isdecimal() and int(quota) > 0 and int(period) > 0:
                    limits.append(math.ceil(int(quota) / int(period)))
    return limits


# -- GPUs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Card:
    """A card in the order of NVML, and its devices: the card or its MIG instances; none if the card is lost."""

    uuid: str
    name: str
    devices: tuple[Gpu, ...]


def _gpus(environ: Mapping[str, str], nvml: Nvml | None) -> tuple[tuple[Gpu, ...], list[str]]:
    try:
        nvml = nvml or _pynvml()
    except ImportError:
        return (), ["nvidia-ml-py is not installed, so NVIDIA GPUs were not looked for."]
    notes: list[str] = []
    try:
        with opened(nvml) as lib:
            cards = [_card(lib, index, notes) for index in range(lib.nvmlDeviceGetCount())]
    except nvml.NVMLError_LibraryNotFound:
        return (), []  # no NVIDIA driver: the usual case without a GPU
    except nvml.NVMLError as error:
        return (), [f"An NVIDIA driver is installed, but does not work: {error}. No GPU is used."]
    chosen, problem = _select(environ.get("CUDA_VISIBLE_DEVICES"), cards)
    is_unequal = len({card.name for card in cards if card.devices}) > 1
    is_numbered = bool(chosen) and environ.get("CUDA_VISIBLE_DEVICES", "")[:1].isdigit()
    if is_numbered and is_unequal and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            "The GPUs differ and CUDA_VISIBLE_DEVICES gives numbers: they were taken in the order of nvidia-smi, "
            "while CUDA puts the fastest first. Give UUIDs (`nvidia-smi -L`), or set CUDA_DEVICE_ORDER=PCI_BUS_ID."
        )
    return tuple(chosen), notes + problem


def _card(lib: Nvml, index: int, notes: list[str]) -> _Card:
    try:
        card = lib.nvmlDeviceGetHandleByIndex(index)
        uuid, name = lib.nvmlDeviceGetUUID(card), lib.nvmlDeviceGetName(card)
        try:
            is_mig, _after_next_reset = lib.nvmlDeviceGetMigMode(card)
        except lib.NVMLError:
            is_mig = False  # not supported by most cards
        if not is_mig:
            return _Card(uuid, name, (_gpu(lib, index, card),))
        devices = tuple(_gpu(lib, index, instance) for instance in _instances(lib, card))
    except lib.NVMLError as error:
        notes.append(f"GPU {index} is left out: {error}.")
        return _Card("", "", ())
    if not devices:
        notes.append(f"GPU {index} is in MIG mode and has no instances, so it cannot be used.")
    return _Card(uuid, name, devices)


def _gpu(lib: Nvml, index: int, handle: Any) -> Gpu:
    try:
        memory_bytes = int(lib.nvmlDeviceGetMemoryInfo(handle).total)
    except lib.NVMLError:
        memory_bytes = 0  # unified memory has no separate size
    try:
        major, minor = lib.nvmlDeviceGetCudaComputeCapability(handle)
    except lib.NVMLError:
        major, minor = 0, 0
    uuid = lib.nvmlDeviceGetUUID(handle)
    return Gpu(index, uuid, lib.nvmlDeviceGetName(handle), memory_bytes, uuid, (int(major), int(minor)))


def _instances(lib: Nvml, card: Any) -> Iterator[Any]:
    for number in range(lib.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            yield lib.nvmlDeviceGetMigDeviceHandleByIndex(card, number)
        except lib.NVMLError:
            continue  # indices may have gaps


def _select(value: str | None, cards: list[_Card]) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, in its order, and a note if an entry is unknown."""
    if value is None:
        return [gpu for card in cards for gpu in card.devices], []
    chosen: list[tuple[Gpu, ...]] = []
    notes: list[str] = []
    for entry in value.split(","):
        gpus = _find_gpus(entry, value, cards)
        if gpus is None:
            if entry.strip() not in ("", "-1"):
                text = f"there is no GPU {entry!r}, so CUDA ignores it and all later entries."
                notes = [f"CUDA_VISIBLE_DEVICES={value}: {text}"]
            break
        if gpus and gpus in chosen:
            return [], [f"CUDA_VISIBLE_DEVICES={value} names a GPU twice, so CUDA shows no GPU."]
        chosen.append(gpus)
    return [gpu for devices in chosen for gpu in devices], notes


def _find_gpus(entry: str, value: str, cards: list[_Card]) -> tuple[Gpu, ...] | None:
    """Return the GPUs of an entry. The first entry of `value` decides between numbers and UUIDs."""
    if not value.startswith(("GPU-", "MIG-")):
        number = re.match(r"\+?\d+", entry.strip())  # CUDA parses `1gpu` as 1, like C's strtoul
        return cards[int(number[0])].devices if number and int(number[0]) < len(cards) else None
    if not entry.startswith(value[:4]):
        return None
    known = [(card.uuid, card.devices) for card in cards]
    known += [(gpu.uuid, (gpu,)) for card in cards for gpu in card.devices if gpu.uuid != card.uuid]
    fitting = [devices for uuid, devices in known if uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
