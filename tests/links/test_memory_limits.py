"""The maximum message size depends on the memory that this process may use."""

from pathlib import Path

import pytest

from fanwise.links.frames import Limits
from fanwise.links.hub import Hub
from fanwise.links.memory_limits import memory_bytes
from fanwise.links.transports.unix import link_pair


@pytest.mark.parametrize(("asked", "taken"), [(1 << 60, memory_bytes() // 2), (1000, 1000)])
def test_a_message_is_at_most_half_of_the_memory(asked: int, taken: int) -> None:
    hub = Hub(name="limits")
    assert [link.frame_bytes for link in link_pair(hub, hub, limits=Limits(frame_bytes=asked))] == [taken] * 2
    hub.close()


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b\n", {"a/memory.max": "5000", "a/b/memory.max": "max"}, 5000),
        ("0::/a/b\n", {"memory.max": "7000", "a/b/memory.max": "9000"}, 7000),
        ("0::/of/the/host\n", {"memory.max": "4000"}, 4000),
        ("7:cpu,memory:/x\n3:pids:/y\n", {"memory/x/memory.limit_in_bytes": "3000"}, 3000),
        ("0::/\n", {}, 8192),
    ],
)
def test_the_lowest_limit_of_the_groups_counts(tmp_path: Path, groups: str, files: dict[str, str], limit: int) -> None:
    contents = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {**contents, "proc/meminfo": "MemTotal: 8 kB", "proc/self/cgroup": groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_bytes(tmp_path) == limit
