"""What this process may use of the machine it runs on: CPUs, memory, GPUs; and what the kernel killed.

    /proc, cgroups (v1 and v2), $FANWISE_CPUS ---------> cpus, memory_bytes
    NVML (through nvidia-ml-py), $CUDA_VISIBLE_DEVICES -> gpus
    anything odd on the way ---------------------------> notes, for people

Limits are taken at their smallest: a container or batch job often gets less than the machine has. NVML tells of GPUs
without touching one: no CUDA context is made. GPUs are handed on by their UUIDs, which mean the same in every
process; their numbers depend on CUDA_DEVICE_ORDER and on what is visible.

CUDA_VISIBLE_DEVICES is read as CUDA reads it (and as torch does, `torch.cuda._parse_visible_devices`): numbers or
UUIDs, whichever comes first; UUIDs may be cut short as long as they stay unique; an entry that fits nothing ends the
list; an entry given twice empties it. A card in MIG mode stands for all its instances, each a device of its own.

Reads the file system below `root`, so that tests can bring a machine of their own.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from .leases import Gpu as Gpu
from .leases import Machine as Machine

_ROOT = Path("/")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel, the same on every Linux


class Nvml(Protocol):
    """What is used of the module `pynvml`."""

    NVMLError: type[Exception]
    NVMLError_LibraryNotFound: type[Exception]

    # Any: handles and structures of the foreign library.
    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMigMode(self, device: Any) -> Any: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any: ...


def find_machine(environ: Mapping[str, str] = os.environ, root: Path = _ROOT, nvml: Nvml | None = None) -> Machine:
    """Look at the machine, within the limits that hold for this process.

    Args:
        environ: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and FANWISE_CPUS (overrides the number of CPUs) are read.
        root: where /proc and /sys are.
        nvml: the module pynvml, or what stands for it; imported if None.

    Raises:
        ValueError: FANWISE_CPUS is not a number of at least 1.
    """
    cpus, cpu_notes = _cpus(environ, root)
    gpus, gpu_notes = _gpus(environ, nvml)
    return Machine(cpus, _memory_bytes(root), gpus, (*cpu_notes, *gpu_notes))


def ooms_so_far(root: Path = _ROOT) -> int:
    """How many processes the kernel has killed for lack of memory: in our cgroup if it counts them, else anywhere.

    A number to compare with an earlier one; 0 where nothing counts. The machine's own count would blame an unlucky
    job for the death of a stranger, so the cgroup's is preferred: it counts deaths in the cgroup whatever the cause.
    """
    for folder in _cgroup_folders(root, "memory"):
        for file in ("memory.events", "memory.oom_control"):
            if (count := _field(_read(folder / file), "oom_kill")) is not None:
                return count
    return _field(_read(root / "proc/vmstat"), "oom_kill") or 0


@contextmanager
def opened(nvml: Nvml | None = None) -> Iterator[Nvml]:
    """NVML, initialised as long as the block runs; cheap inside another such block, because NVML counts them.

    Raises:
        NVMLError: no driver, or a broken one.
        ImportError: nvidia-ml-py is not installed.
    """
    if nvml is None:
        import pynvml

        nvml = pynvml
    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def gpu_pids(visible: str, nvml: Nvml | None = None, root: Path = _ROOT) -> set[int] | None:
    """The processes that have a CUDA context on this GPU (`Gpu.visible`).

    Returns:
        None where they cannot be known: the driver does not tell, or we are in a PID namespace of our own (a
        container), where NVML shows numbers of the host or none at all. `gpu_memory_used` is left then.
    """
    if _link_target(root / "proc/self/ns/pid") != _INITIAL_PID_NAMESPACE:
        return None
    processes = _ask_gpu(visible, nvml, lambda lib, handle: lib.nvmlDeviceGetComputeRunningProcesses(handle))
    return None if processes is None else {process.pid for process in processes}


def gpu_memory_used(visible: str, nvml: Nvml | None = None) -> int | None:
    """Bytes in use on this GPU (`Gpu.visible`), by whomever; None where the driver does not tell."""
    memory = _ask_gpu(visible, nvml, lambda lib, handle: lib.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else int(memory.used)


def _ask_gpu(visible: str, nvml: Nvml | None, question: Callable[[Nvml, Any], Any]) -> Any:  # Any: NVML's structures
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        with opened(nvml) as lib:
            return question(lib, lib.nvmlDeviceGetHandleByUUID(visible))
    except nvml.NVMLError:
        return None


# -- CPUs and memory ---------------------------------------------------------------------------------------------------


def _cpus(environ: Mapping[str, str], root: Path) -> tuple[int, list[str]]:
    found = min([_allowed_cpus(root), *_cpu_quotas(root)])
    wanted = environ.get("FANWISE_CPUS", "").strip()
    if not wanted:
        return found, []
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"FANWISE_CPUS must be a whole number of at least 1, got {wanted!r}")
    notes = [f"FANWISE_CPUS={wanted} is more than the {found} found."] if int(wanted) > found else []
    return int(wanted), notes


def usable_cpus(environ: Mapping[str, str] = os.environ, root: Path = _ROOT) -> int:
    """How many CPUs this process may use, as `find_machine` counts them, without looking for GPUs."""
    return _cpus(environ, root)[0]


def _allowed_cpus(root: Path) -> int:
    """The CPUs this process may be scheduled on: affinity, which includes cpusets."""
    listed = re.search(r"^Cpus_allowed_list:\s*(\S+)", _read(root / "proc/self/status"), re.MULTILINE)
    if listed is None:
        return os.cpu_count() or 1
    ends = [part.split("-") for part in listed[1].split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def _cpu_quotas(root: Path) -> list[int]:
    """How many CPUs' worth of time the cgroups allow, rounded up."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        both = f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
        for text in (_read(folder / "cpu.max"), both):
            match text.split():
                case [quota, period] if quota.isdecimal() and int(quota) > 0 and int(period) > 0:
                    quotas.append(math.ceil(int(quota) / int(period)))
    return quotas


def _memory_bytes(root: Path) -> int:
    total_kib = _field(_read(root / "proc/meminfo"), "MemTotal:")
    if total_kib is None:  # not Linux
        import psutil

        return int(psutil.virtual_memory().total)
    limits = [total_kib * 1024]
    for folder in _cgroup_folders(root, "memory"):
        texts = [_read(folder / file).strip() for file in ("memory.max", "memory.limit_in_bytes")]
        limits += [int(text) for text in texts if text.isdecimal()]
    return min(limits)


def _cgroup_folders(root: Path, controller: str) -> tuple[Path, ...]:
    """The folders whose limits hold for us, innermost first; some may not exist.

    In a container the path that /proc names may be the host's, and what is mounted is the container's own group: then
    the longer folders are missing, and the mount itself is the right one.
    """
    return _folders_of(root, controller, _read(root / "proc/self/cgroup"))


@lru_cache(maxsize=8)
def _folders_of(root: Path, controller: str, groups: str) -> tuple[Path, ...]:
    """As above, of the text of /proc/self/cgroup. Kept, because every job asks and the answer hardly ever changes."""
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in groups.splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        bases = {mount / controllers, mount / controller} if controllers else {mount, mount / "unified"}
        for base in sorted(bases):
            inner = base / path.lstrip("/")
            folders += [inner, *(above for above in inner.parents if above.is_relative_to(base))]
    return tuple(folders)


def _field(text: str, name: str) -> int | None:
    """The number after a name, in files of lines such as `oom_kill 3`."""
    found = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _read(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read().decode()
    except OSError:
        return ""


def _link_target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


# -- GPUs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Card:
    """A card as NVML numbers it, and what it offers: itself, or its MIG instances. A lost card offers nothing."""

    uuid: str
    name: str
    offers: tuple[Gpu, ...]


def _gpus(environ: Mapping[str, str], nvml: Nvml | None) -> tuple[tuple[Gpu, ...], list[str]]:
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return (), ["nvidia-ml-py is not installed, so NVIDIA GPUs were not looked for."]
        nvml = pynvml
    notes: list[str] = []
    try:
        with opened(nvml) as lib:
            cards = [_card(lib, index, notes) for index in range(lib.nvmlDeviceGetCount())]
    except nvml.NVMLError_LibraryNotFound:
        return (), []  # no NVIDIA driver: the usual case without a GPU
    except nvml.NVMLError as error:
        return (), [f"An NVIDIA driver is installed, but does not work: {error}. No GPU is used."]
    chosen, problem = _select(environ.get("CUDA_VISIBLE_DEVICES"), cards)
    unequal = len({card.name for card in cards if card.offers}) > 1
    numbered = bool(chosen) and environ.get("CUDA_VISIBLE_DEVICES", "")[:1].isdigit()
    if numbered and unequal and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            "The GPUs differ and CUDA_VISIBLE_DEVICES gives numbers: they were taken in the order of nvidia-smi, "
            "while CUDA puts the fastest first. Give UUIDs (`nvidia-smi -L`), or set CUDA_DEVICE_ORDER=PCI_BUS_ID."
        )
    return tuple(chosen), notes + problem


def _card(lib: Nvml, index: int, notes: list[str]) -> _Card:
    try:
        card = lib.nvmlDeviceGetHandleByIndex(index)
        uuid, name = lib.nvmlDeviceGetUUID(card), lib.nvmlDeviceGetName(card)
        if not _has_mig(lib, card):
            return _Card(uuid, name, (_gpu(lib, index, card),))
        offers = tuple(_gpu(lib, index, instance) for instance in _instances(lib, card))
    except lib.NVMLError as error:
        notes.append(f"GPU {index} is left out: {error}.")
        return _Card("", "", ())
    if not offers:
        notes.append(f"GPU {index} is in MIG mode and has no instances, so it cannot be used.")
    return _Card(uuid, name, offers)


def _gpu(lib: Nvml, index: int, handle: Any) -> Gpu:  # Any: a handle of NVML
    try:
        memory_bytes = int(lib.nvmlDeviceGetMemoryInfo(handle).total)
    except lib.NVMLError:
        memory_bytes = 0  # memory shared with the CPU has no size of its own
    try:
        major, minor = lib.nvmlDeviceGetCudaComputeCapability(handle)
    except lib.NVMLError:
        major, minor = 0, 0
    uuid = lib.nvmlDeviceGetUUID(handle)
    return Gpu(index, uuid, lib.nvmlDeviceGetName(handle), memory_bytes, uuid, (int(major), int(minor)))


def _has_mig(lib: Nvml, card: Any) -> bool:  # Any: a handle of NVML
    try:
        current, _after_next_reset = lib.nvmlDeviceGetMigMode(card)
    except lib.NVMLError:
        return False  # most cards know no MIG
    return bool(current)


def _instances(lib: Nvml, card: Any) -> Iterator[Any]:  # Any: handles of NVML
    for number in range(lib.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            yield lib.nvmlDeviceGetMigDeviceHandleByIndex(card, number)
        except lib.NVMLError:
            continue  # this place is empty; the numbers may have gaps


def _select(value: str | None, cards: list[_Card]) -> tuple[list[Gpu], list[str]]:
    """What CUDA_VISIBLE_DEVICES leaves of the cards, in its order, and a note if it names what is not there."""
    if value is None:
        return [gpu for card in cards for gpu in card.offers], []
    by_uuid = value.startswith(("GPU-", "MIG-"))
    chosen: list[tuple[Gpu, ...]] = []
    for entry in value.split(","):
        found = _by_uuid(entry, value[:4], cards) if by_uuid else _by_number(entry, cards)
        if found is None:
            wrong = entry.strip() not in ("", "-1")
            return _flat(chosen), [_ended(value, entry)] if wrong else []
        if found and found in chosen:
            return [], [f"CUDA_VISIBLE_DEVICES={value} names a GPU twice, and CUDA shows none then."]
        chosen.append(found)
    return _flat(chosen), []


def _by_number(entry: str, cards: list[_Card]) -> tuple[Gpu, ...] | None:
    number = re.match(r"\+?\d+", entry.strip())  # CUDA reads `1gpu` as 1, as C's strtoul does
    return cards[int(number[0])].offers if number and int(number[0]) < len(cards) else None


def _by_uuid(entry: str, prefix: str, cards: list[_Card]) -> tuple[Gpu, ...] | None:
    if not entry.startswith(prefix):
        return None
    known = [(card.uuid, card.offers) for card in cards]
    known += [(gpu.uuid, (gpu,)) for card in cards for gpu in card.offers if gpu.uuid != card.uuid]
    fitting = [offers for uuid, offers in known if uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


def _flat(chosen: list[tuple[Gpu, ...]]) -> list[Gpu]:
    return [gpu for offers in chosen for gpu in offers]


def _ended(value: str, entry: str) -> str:
    return f"CUDA_VISIBLE_DEVICES={value}: no GPU fits {entry!r}, so the list ends before it, as CUDA ends it."
