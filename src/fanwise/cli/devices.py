"""The command `fanwise devices`."""

from ..base.plain_json import json_text
from ..pool.devices import find_machine
from ..pool.mps import mps_problem


def device_lines() -> list[str]:
    """Return the CPUs, memory and GPUs of this machine, one per line, and notes."""
    machine = find_machine()
    lines = [f"CPUs    {machine.cpus}", f"memory  {_gib(machine.memory_bytes)}"]
    for gpu in machine.gpus:
        lines.append(f"GPU {gpu.index}   {gpu.name}, {_gib(gpu.memory_bytes)}, {gpu.uuid}")
    if machine.gpus:
        problem = mps_problem(machine.gpus)
        lines.append(f"MPS     {f'cannot be used: {problem}' if problem else 'can be used'}")
    else:
        lines.append("GPUs    none")
    return lines + [f"note: {note}" for note in machine.notes]


def devices_json() -> str:
    """Return `device_lines` as JSON."""
    machine = find_machine()
    return json_text(
        {
            "cpus": machine.cpus,
            "memory_bytes": machine.memory_bytes,
            "gpus": [
                {"index": gpu.index, "name": gpu.name, "memory_bytes": gpu.memory_bytes, "uuid": gpu.uuid}
                for gpu in machine.gpus
            ],
            "notes": list(machine.notes),
        }
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
