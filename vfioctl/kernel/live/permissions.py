"""Owner, group and mode of files and device nodes."""

from __future__ import annotations

import errno as errnos
import os
import stat


def permissions_of(status: os.stat_result) -> str:
    """Return them as `0:0:600`."""
    return f"{status.st_uid}:{status.st_gid}:{stat.S_IMODE(status.st_mode):o}"


def set_permissions(path: str, value: str) -> None:
    """Set those of a character device, which is root's meanwhile. Follows no link. Raises OSError.

    Needs only CAP_CHOWN: the mode is set while root owns the node."""
    uid, gid, mode = value.split(":")
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISCHR(os.fstat(fd).st_mode):
            raise OSError(errnos.ENODEV, "not a character device")
        node = f"/proc/self/fd/{fd}"  # chmod takes no descriptor of O_PATH
        os.chown(node, 0, 0)
        os.chmod(node, int(mode, 8))
        os.chown(node, int(uid), int(gid))
    finally:
        os.close(fd)
