"""Owner, group and mode of files and device nodes."""

from __future__ import annotations

import errno as errnos
import os
import stat


def permissions_of(status: os.stat_result) -> str:
    """Return them as `0:0:600`."""
    return f"{status.st_uid}:{status.st_gid}:{stat.S_IMODE(status.st_mode):o}"


def set_permissions(path: str, value: str) -> None:
    """Set those of a character device; meanwhile only root may open it. Follows no link. Raises OSError."""
    uid, gid, mode = value.split(":")
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISCHR(os.fstat(fd).st_mode):
            raise OSError(errnos.ENODEV, "not a character device")
        node = f"/proc/self/fd/{fd}"  # chmod takes no descriptor of O_PATH
        os.chmod(node, 0o600)
        os.chown(node, int(uid), int(gid))
        os.chmod(node, int(mode, 8))
    finally:
        os.close(fd)
