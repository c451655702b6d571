"""Is a path on a network file system? SQLite's write-ahead log must not live on one.

The log needs memory shared between the processes that use a database, and locks that hold. NFS, SMB and the cluster
file systems promise neither, and the price is a broken file (https://www.sqlite.org/wal.html, section 9). The record
asks here and then keeps its live file on local disk.

Knows the mount table of Linux (proc_pid_mountinfo(5)) and the names of network file systems. Does not know what the
answer is used for. Elsewhere than on Linux there is no such table, and the answer is "no".
"""

import os
from pathlib import Path

# fmt: off
NETWORK_TYPES = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "vmhgfs", "wekafs",
    "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.grpcfuse", "fuse.juicefs", "fuse.mount-s3", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs", "fuse.vmhgfs-fuse",
})
# fmt: on

_MOUNTINFO = Path("/proc/self/mountinfo")


def is_network(path: str | os.PathLike[str], mountinfo: str | None = None) -> bool:
    """Whether `path`, which need not exist yet, lies on a network file system.

    Args:
        path: a file or folder; links in it are followed.
        mountinfo: the text of a mount table; by default this process's own.

    >>> is_network("/data/runs", "36 25 0:40 / /data rw - nfs4 server:/export rw")
    True
    """
    return file_system_type(path, mountinfo) in NETWORK_TYPES


def file_system_type(path: str | os.PathLike[str], mountinfo: str | None = None) -> str | None:
    """The type of the file system that holds `path`, as the mount table calls it; None where there is no table."""
    if mountinfo is None:
        try:
            mountinfo = _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    place = os.path.realpath(path)
    longest, found = -1, None
    for mount_point, kind in _mounts(mountinfo):
        # Of two mounts on one point, the later hides the earlier: hence >=.
        if len(mount_point) >= longest and _is_inside(place, mount_point):
            longest, found = len(mount_point), kind
    return found


def _mounts(mountinfo: str) -> list[tuple[str, str]]:
    """(mount point, type) of each line; lines that are not of the documented form are passed over."""
    mounts = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if separator and len(fields) >= 5 and kinds[0]:
            mounts.append((_unescape(fields[4]), kinds[0]))
    return mounts


def _unescape(text: str) -> str:
    """The kernel writes blank, tab, newline and backslash as three octal digits."""
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, character)
    return text


def _is_inside(place: str, mount_point: str) -> bool:
    return mount_point == "/" or place == mount_point or place.startswith(mount_point + "/")
