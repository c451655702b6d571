"""Which mount holds a path, from given mount tables."""

from pathlib import Path

import pytest

from fanwise.tune.record.filesystems import NETWORK_TYPES, file_system_type, is_network

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw
40 27 0:50 / /home rw,relatime - nfs4 server:/home rw
41 40 0:51 / /home/me/fast rw - xfs /dev/nvme0n1 rw
42 27 0:52 / /home/me\040too rw - cifs //server/share rw
43 27 0:53 / /data rw - ext4 /dev/vdb rw
44 43 0:54 / /data rw - lustre mgs:/data rw
45 27 0:55 / /sshd rw - fuse.sshfs me@server: rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/log", "ext4"),
        ("/home", "nfs4"),
        ("/home/you/runs/not/there/yet", "nfs4"),
        ("/homeless", "ext4"),
        ("/home/me/fast/runs", "xfs"),
        ("/home/me/faster", "nfs4"),
        ("/home/me too/runs", "cifs"),
        ("/data/runs", "lustre"),
        ("/sshd/x", "fuse.sshfs"),
    ],
)
def test_the_longest_mount_point_wins_and_of_equals_the_latest(path: str, kind: str) -> None:
    assert file_system_type(path, TABLE) == kind
    assert is_network(path, TABLE) == (kind in NETWORK_TYPES)


def test_network_file_systems_are_told_from_local_ones() -> None:
    network = [path for path in ("/var", "/home/x", "/home/me/fast", "/data", "/sshd") if is_network(path, TABLE)]
    assert network == ["/home/x", "/data", "/sshd"]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    table = f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / {tmp_path}/real rw - nfs b rw\n"
    assert is_network(tmp_path / "link" / "runs", table)
    assert not is_network(tmp_path, table)


@pytest.mark.parametrize("table", ["", "\n", "garbage", "1 2 3 - ", "1 0 0:1 / / rw ext4 a rw"])
def test_lines_of_another_form_are_passed_over(table: str) -> None:
    assert file_system_type("/home", table) is None
    assert not is_network("/home", table)


def test_this_machine_has_a_file_system_at_its_root() -> None:
    assert file_system_type("/proc/self") == "proc"
