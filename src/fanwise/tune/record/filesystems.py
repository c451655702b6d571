"""May SQLite's write-ahead log live in a folder? Not on a network file system, and not where locks or mapping fail.

The log needs memory shared between the processes that use a database, and locks that hold. NFS, SMB and the cluster
file systems promise neither, and the price is a broken file (https://www.sqlite.org/wal.html, section 9). The record
asks here and then keeps its live file on local disk.

Asked twice: of the mount table of Linux (proc_pid_mountinfo(5)), by the names of network file systems, and of the file
system itself, by a small file that is locked and mapped. Does not know what the answer is used for. Elsewhere than on
Linux there is no such table, and only the second question is asked.
"""

import errno
import fcntl
import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

# fmt: off
NETWORK_TYPES = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "vmhgfs", "wekafs",
})
# File systems in user space are mostly views of something far away. These are of this machine's own disks.
LOCAL_IN_USER_SPACE = frozenset({"fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.lxcfs", "fuse.ntfs-3g"})
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
    kind = file_system_type(path, mountinfo)
    return kind in NETWORK_TYPES or _is_in_user_space(kind)


def trouble_with(folder: Path, mountinfo: str | None = None) -> str | None:
    """Why a write-ahead log must not live in this folder, as a clause; None: it may.

    Writes a small file into the folder and removes it.

    Raises:
        OSError: nothing can be written there at all.
    """
    kind = file_system_type(folder, mountinfo)
    if _is_in_user_space(kind):
        return f"{folder} is on a file system in user space ({kind}), which other machines may share"
    if kind in NETWORK_TYPES:
        return f"{folder} is on a network file system ({kind})"
    return probe(folder)


def probe(folder: Path) -> str | None:
    """Whether locks hold in this folder and a file can be shared in memory; what does not work, as a clause.

    Raises:
        OSError: nothing can be written there at all.
    """
    descriptor, name = tempfile.mkstemp(prefix=".probe.", dir=folder)
    try:
        return _locking_trouble(descriptor, name, folder) or _mapping_trouble(descriptor, folder)
    finally:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(name)


def _locking_trouble(descriptor: int, name: str, folder: Path) -> str | None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)  # what SQLite uses
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what tells a writer that lives
        other = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"the file system of {folder} has no locks ({error.strerror})"
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    finally:
        os.close(other)
    return f"the file system of {folder} grants one lock twice"


def _mapping_trouble(descriptor: int, folder: Path) -> str | None:
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)  # a full disk is an error here, and below the end by a signal
        with mmap.mmap(descriptor, mmap.PAGESIZE) as one, mmap.mmap(descriptor, mmap.PAGESIZE) as other:
            one[0] = 7
            shares = other[0] == 7
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return f"the file system of {folder} cannot map files into memory ({error})"
    return None if shares else f"the file system of {folder} does not share what is mapped"


def _is_in_user_space(kind: str | None) -> bool:
    """Not "fuseblk": that one is on a block device."""
    return kind is not None and kind.split(".")[0] == "fuse" and kind not in LOCAL_IN_USER_SPACE


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
