"""Which mount holds a path, from given mount tables."""

import errno
import fcntl
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fanwise.tune.record.filesystems import NETWORK_TYPES, file_system_type, is_network, probe, trouble_with
from fanwise.tune.record.reading import read_events
from fanwise.tune.record.writer import Record

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
    assert is_network(path, TABLE) == (kind in NETWORK_TYPES or kind.startswith("fuse."))


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


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nfs4", "is on a network file system (nfs4)"),
        ("fuse", "is on a file system in user space (fuse), which other machines may share"),
        ("fuse.s3fs", "is on a file system in user space (fuse.s3fs), which other machines may share"),
        ("fuse.gocryptfs", None),
        ("fuseblk", None),
        ("ext4", None),
    ],
)
def test_what_is_wrong_with_a_file_system_is_said(tmp_path: Path, kind: str, expected: str | None) -> None:
    trouble = trouble_with(tmp_path, f"1 0 0:1 / / rw - {kind} a rw")
    assert trouble == (expected and f"{tmp_path} {expected}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_refuses_locks_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int, *length: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert probe(tmp_path) == f"the file system of {tmp_path} has no locks (No locks available)"
    assert list(tmp_path.iterdir()) == []


def test_locks_that_exclude_nobody_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: None)
    assert probe(tmp_path) == f"the file system of {tmp_path} grants one lock twice"


def test_a_file_system_that_maps_no_files_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, size_bytes: int) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    assert "cannot map files into memory" in (probe(tmp_path) or "")


@pytest.mark.skipif(shutil.which("bindfs") is None or not os.access("/dev/fuse", os.W_OK), reason="needs bindfs")
def test_a_mounted_file_system_in_user_space_gets_copies(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").mkdir()
    subprocess.run(["bindfs", tmp_path / "disk", tmp_path / "home"], check=True)
    try:
        record = Record.create(tmp_path / "home" / "e", {"name": "e"})
        assert record.file.parent != tmp_path / "home" / "e"
        assert "is on a file system in user space (fuse)" in record.notices[0]
        record.append(0.0, "report", 0, {})
        record.close()
        assert len(read_events(tmp_path / "home" / "e")) == 1
    finally:
        subprocess.run(["umount", tmp_path / "home"], check=True)


def test_this_machine_has_a_file_system_at_its_root() -> None:
    assert file_system_type("/proc/self") == "proc"
