"""CPUs, memory and GPUs of machines that are described by files in a folder and a substitute for NVML."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from fanwise.pool.devices import find_machine, gpu_memory_used, gpu_pids, ooms_so_far, opened
from fanwise.pool.leases import Gpu, Machine

GIB = 1024**3
STATUS = "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n"
MEMINFO = "MemTotal:       33554432 kB\nMemFree:        1 kB\n"


class NvmlFault(Exception):
    """Stands for pynvml.NVMLError."""


class LibraryNotFound(NvmlFault):
    """Stands for pynvml.NVMLError_LibraryNotFound."""


@dataclass
class Device:
    """A card or an instance. `instances` may contain None for unused indices."""

    uuid: str
    name: str = "H200"
    memory_bytes: int | None = 100 * GIB
    used_bytes: int = 0
    pids: list[int] | None = field(default_factory=list)
    mig: bool | None = None
    instances: list["Device | None"] = field(default_factory=list)
    lost: bool = False
    compute_capability: tuple[int, int] | None = (9, 0)


@dataclass
class FakeNvml:
    """A substitute for pynvml. `opened` counts initializations."""

    devices: list[Device]
    fault: Exception | None = None
    opened: int = 0
    NVMLError: type[Exception] = NvmlFault
    NVMLError_LibraryNotFound: type[Exception] = LibraryNotFound

    def nvmlInit(self) -> None:
        if self.fault:
            raise self.fault
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def _check(self) -> None:
        if self.opened < 1:
            raise NvmlFault("Uninitialized")

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        self._check()
        if self.devices[index].lost:
            raise NvmlFault("GPU is lost")
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        self._check()
        instances = [device for card in self.devices for device in card.instances if device]
        for device in [*self.devices, *instances]:
            if device.uuid == uuid:
                return device
        raise NvmlFault("Not Found")

    def nvmlDeviceGetCudaComputeCapability(self, handle: Device) -> tuple[int, int]:
        if handle.compute_capability is None:
            raise NvmlFault("Not Supported")
        return handle.compute_capability

    def nvmlDeviceGetUUID(self, handle: Device) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Device) -> str:
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: Device) -> SimpleNamespace:
        if handle.memory_bytes is None:
            raise NvmlFault("Not Supported")
        return SimpleNamespace(total=handle.memory_bytes, used=handle.used_bytes)

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        if device.mig is None:
            raise NvmlFault("Not Supported")
        return [int(device.mig), int(device.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:
        return len(device.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:
        instance = device.instances[index]
        if instance is None:
            raise NvmlFault("Not Found")
        return instance

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Device) -> list[SimpleNamespace]:
        if handle.pids is None:
            raise NvmlFault("Insufficient Permissions")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in handle.pids]


NO_DRIVER = FakeNvml([], LibraryNotFound("NVML Shared Library Not Found"))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 8 CPUs and 32 GiB without limits."""
    write(tmp_path, {"proc/self/status": STATUS.format(cpus="0-7"), "proc/meminfo": MEMINFO, "proc/self/cgroup": ""})
    return tmp_path


def machine(root: Path, **environ: str) -> Machine:
    return find_machine(environ, root, NO_DRIVER)


def visible(cards: list[Device], value: str | None, root: Path) -> tuple[list[str], tuple[str, ...]]:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    described = find_machine(environ, root, FakeNvml(cards))
    return [gpu.visible for gpu in described.gpus], described.notes


# -- CPUs and memory ---------------------------------------------------------------------------------------------------


def test_all_resources_of_a_machine_without_limits_are_used(root: Path) -> None:
    assert machine(root) == Machine(cpus=8, memory_bytes=32 * GIB, gpus=(), notes=())


def test_affinity_limits_the_cpus(root: Path) -> None:
    write(root, {"proc/self/status": STATUS.format(cpus="0,2-4,7")})
    assert machine(root).cpus == 5


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1)]
)
def test_cgroup_2_limits_the_cpus_rounded_up(root: Path, quota: str, cpus: int) -> None:
    write(root, {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": f"{quota}\n"})
    assert machine(root).cpus == cpus


def test_the_smallest_limit_on_the_way_up_counts(root: Path) -> None:
    folder = "sys/fs/cgroup/batch"
    write(
        root,
        {
            "proc/self/cgroup": "0::/batch/job/step\n",
            f"{folder}/job/step/cpu.max": "max 100000\n",
            f"{folder}/job/cpu.max": "300000 100000\n",
            f"{folder}/cpu.max": "500000 100000\n",
            f"{folder}/job/step/memory.max": "max\n",
            f"{folder}/memory.max": f"{4 * GIB}\n",
            f"{folder}/job/memory.max": f"{6 * GIB}\n",
        },
    )
    assert (machine(root).cpus, machine(root).memory_bytes) == (3, 4 * GIB)


def test_cgroup_1_limits_cpus_and_memory(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert (machine(root).cpus, machine(root).memory_bytes) == (3, 2 * GIB)


def test_a_container_whose_cgroup_path_is_the_hosts_reads_its_mount(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/docker/4f00\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"})
    assert machine(root).cpus == 1


def test_the_environment_overrides_the_cpus(root: Path) -> None:
    assert machine(root, FANWISE_CPUS="3") == Machine(3, 32 * GIB, (), ())
    assert machine(root, FANWISE_CPUS="12") == Machine(12, 32 * GIB, (), ("FANWISE_CPUS=12 is more than the 8 found.",))


@pytest.mark.parametrize("value", ["0", "-2", "many", "1.5"])
def test_a_wrong_number_of_cpus_is_refused(root: Path, value: str) -> None:
    with pytest.raises(ValueError, match="FANWISE_CPUS must be a whole number of at least 1, got"):
        machine(root, FANWISE_CPUS=value)


# -- GPUs --------------------------------------------------------------------------------------------------------------

CARDS = [Device("GPU-aa11"), Device("GPU-ab22"), Device("GPU-cc33")]
ALL = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]


def test_gpus_are_described(root: Path) -> None:
    nvml = FakeNvml([Device("GPU-aa11", "A10", 24 * GIB), Device("GPU-ab22", "GB10", None, compute_capability=None)])
    assert find_machine({}, root, nvml).gpus == (
        Gpu(index=0, uuid="GPU-aa11", name="A10", memory_bytes=24 * GIB, visible="GPU-aa11", compute_capability=(9, 0)),
        Gpu(index=1, uuid="GPU-ab22", name="GB10", memory_bytes=0, visible="GPU-ab22", compute_capability=(0, 0)),
    )
    assert nvml.opened == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ALL),
        ("0,1,2", ALL),
        ("2,0", ["GPU-cc33", "GPU-aa11"]),
        (" 1 , 2", ["GPU-ab22", "GPU-cc33"]),
        ("1gpu,+2", ["GPU-ab22", "GPU-cc33"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["GPU-aa11"]),
        ("0,,1", ["GPU-aa11"]),
        ("GPU-cc,GPU-aa11", ["GPU-cc33", "GPU-aa11"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(root: Path, value: str | None, expected: list[str]) -> None:
    assert visible(CARDS, value, root) == (expected, ())


@pytest.mark.parametrize(
    ("value", "expected", "entry"),
    [
        ("1,7,0", ["GPU-ab22"], "7"),
        ("none", [], "none"),
        ("0,GPU-cc33", ["GPU-aa11"], "GPU-cc33"),
        ("GPU-cc33,0", ["GPU-cc33"], "0"),
        ("GPU-cc33,GPU-dd", ["GPU-cc33"], "GPU-dd"),
        ("GPU-cc33,GPU-a,GPU-ab22", ["GPU-cc33"], "GPU-a"),
    ],
)
def test_an_entry_that_fits_nothing_ends_the_list_and_is_noted(
    root: Path, value: str, expected: list[str], entry: str
) -> None:
    note = f"CUDA_VISIBLE_DEVICES={value}: there is no GPU {entry!r}, so CUDA ignores it and all later entries."
    assert visible(CARDS, value, root) == (expected, (note,))


@pytest.mark.parametrize("value", ["0,1,0", "GPU-aa11,GPU-aa"])
def test_a_gpu_named_twice_empties_the_list(root: Path, value: str) -> None:
    note = f"CUDA_VISIBLE_DEVICES={value} names a GPU twice, so CUDA shows no GPU."
    assert visible(CARDS, value, root) == ([], (note,))


def mig_cards() -> list[Device]:
    return [
        Device("GPU-aa11", mig=True, instances=[Device("MIG-1", "1g"), None, Device("MIG-2", "2g")]),
        Device("GPU-ab22", mig=False, instances=[]),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["MIG-1", "MIG-2", "GPU-ab22"]),
        ("0", ["MIG-1", "MIG-2"]),
        ("1,0", ["GPU-ab22", "MIG-1", "MIG-2"]),
        ("MIG-2", ["MIG-2"]),
        ("GPU-aa", ["MIG-1", "MIG-2"]),
    ],
)
def test_mig_instances_are_devices_of_their_own(root: Path, value: str | None, expected: list[str]) -> None:
    assert visible(mig_cards(), value, root) == (expected, ())


def test_a_card_without_instances_is_noted(root: Path) -> None:
    cards = [Device("GPU-aa11", mig=True, instances=[None, None]), Device("GPU-ab22")]
    assert visible(cards, None, root) == (
        ["GPU-ab22"],
        ("GPU 0 is in MIG mode and has no instances, so it cannot be used.",),
    )


def test_a_lost_card_is_noted_and_the_others_keep_their_numbers(root: Path) -> None:
    cards = [Device("GPU-aa11", lost=True), Device("GPU-ab22")]
    assert visible(cards, "1", root) == (["GPU-ab22"], ("GPU 0 is left out: GPU is lost.",))


def test_numbers_of_unequal_gpus_are_noted(root: Path) -> None:
    cards = [Device("GPU-aa11", "T4"), Device("GPU-ab22", "H200")]
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    doubts = find_machine(environ, root, FakeNvml(cards)).notes
    assert len(doubts) == 1
    assert "CUDA puts the fastest first" in doubts[0]
    assert find_machine({**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, root, FakeNvml(cards)).notes == ()
    assert visible(cards, "GPU-ab22", root) == (["GPU-ab22"], ())


def test_a_missing_driver_is_not_noted(root: Path) -> None:
    assert machine(root).notes == ()


def test_a_broken_driver_is_noted(root: Path) -> None:
    described = find_machine({}, root, FakeNvml(CARDS, NvmlFault("Driver/library version mismatch")))
    assert described.gpus == ()
    assert described.notes == (
        "An NVIDIA driver is installed, but does not work: Driver/library version mismatch. No GPU is used.",
    )


def test_pids_on_a_gpu_are_known_outside_containers(root: Path) -> None:
    nvml = FakeNvml([Device("GPU-aa11", pids=[17, 18]), Device("GPU-ab22", pids=None)])
    (root / "proc/self/ns").mkdir()
    (root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    with opened(nvml):
        assert gpu_pids("GPU-aa11", nvml, root) == {17, 18}
        assert nvml.opened == 1
    assert gpu_pids("GPU-ab22", nvml, root) is None
    assert gpu_pids("GPU-gone", nvml, root) is None
    assert nvml.opened == 0


def test_pids_are_hidden_in_a_namespace_of_its_own(root: Path) -> None:
    nvml = FakeNvml([Device("GPU-aa11", pids=[17])])
    assert gpu_pids("GPU-aa11", nvml, root) is None
    (root / "proc/self/ns").mkdir()
    (root / "proc/self/ns/pid").symlink_to("pid:[4026532211]")
    assert gpu_pids("GPU-aa11", nvml, root) is None


def test_used_memory_of_cards_and_instances() -> None:
    card = Device("GPU-aa11", used_bytes=5, mig=True, instances=[Device("MIG-1", used_bytes=3)])
    nvml = FakeNvml([card, Device("GPU-ab22", memory_bytes=None)])
    assert [gpu_memory_used(uuid, nvml) for uuid in ("GPU-aa11", "MIG-1", "GPU-ab22", "x")] == [5, 3, None, None]


# -- OOM kills ---------------------------------------------------------------------------------------------------------


def test_the_cgroups_own_count_of_kills_is_preferred(root: Path) -> None:
    write(
        root,
        {
            "proc/vmstat": "nr_free_pages 5\noom_kill 40\n",
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
        },
    )
    assert ooms_so_far(root) == 2


def test_the_machines_count_of_kills_is_used_where_the_cgroup_has_none(root: Path) -> None:
    assert ooms_so_far(root) == 0
    write(root, {"proc/vmstat": "nr_free_pages 5\noom_kill 40\n"})
    assert ooms_so_far(root) == 40
