"""Opens device nodes when told to, one command a line: `open PATH`, `mknod PATH MAJOR MINOR`, `use`. Says what came of
it.

`use` asks the driver of DRM through the node that was opened last. Standard library only: it is started as a bare
script.
"""

import errno
import fcntl
import os
import stat
import sys

DRM_IOCTL_VERSION = 0xC0406400
"""_IOWR('d', 0, struct drm_version), drm/drm.h, of 64 bytes where a pointer has eight."""


def obey(words: list[str], opened: list[int]) -> None:
    """One command. Raises OSError."""
    if words[0] == "open":
        opened.append(os.open(words[1], os.O_RDWR))
    elif words[0] == "mknod":
        os.mknod(words[1], stat.S_IFCHR | 0o600, os.makedev(int(words[2]), int(words[3])))
    else:
        fcntl.ioctl(opened[-1], DRM_IOCTL_VERSION, bytearray(64))


if __name__ == "__main__":
    descriptors: list[int] = []
    for line in sys.stdin:
        try:
            obey(line.split(), descriptors)
            said = "done"
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, "?")
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
