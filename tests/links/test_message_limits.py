"""How large a message may be follows from the memory that this process may use."""

from pathlib import Path

import pytest

from fanwise.links.frames import Limits
from fanwise.links.message_limits import fitted, memory_bytes


def test_a_frame_is_at_most_half_of_the_memory() -> None:
    assert fitted(Limits()).frame_bytes == min(1 << 36, memory_bytes() // 2)
    assert fitted(Limits(frame_bytes=1000)) == Limits(frame_bytes=1000)


@pytest.mark.parametrize(
    ("said", "files", "limit"),
    [
        ("0::/a/b\n", {"a/memory.max": "5000", "a/b/memory.max": "max"}, 5000),
        ("0::/a/b\n", {"memory.max": "7000", "a/b/memory.max": "9000"}, 7000),
        ("0::/of/the/host\n", {"memory.max": "4000"}, 4000),
        ("7:cpu,memory:/x\n3:pids:/y\n", {"memory/x/memory.limit_in_bytes": "3000"}, 3000),
    ],
)
def test_the_limits_of_groups_count(tmp_path: Path, said: str, files: dict[str, str], limit: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "mine").write_text(said)
    assert memory_bytes(tmp_path, tmp_path / "mine") == limit


def test_where_nothing_is_said_it_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path, tmp_path / "none") >= memory_bytes() > 1 << 20
