"""A FUSE file system with one empty file, served by this process's child, as an ordinary user would mount it.

Other users, root among them, are refused its files (EACCES): it has no allow_other. Needs root, which mounts it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.processes import end_in_time

NODEV = 4  # MS_NODEV
_DETACH = 2  # MNT_DETACH
_LOOKUP, _FORGET, _GETATTR, _OPEN, _RELEASE, _FLUSH, _INIT, _BATCH_FORGET = 1, 2, 3, 14, 18, 25, 26, 42
_FILE = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def mounted(place: Path, user: int, flags: int) -> Iterator[int]:
    """Mounts it for `user` with `flags`; yields the pid of its server. Raises OSError where FUSE is missing."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={user},group_id={user}"
    try:
        if _libc.mount(b"odd", os.fsencode(place), b"fuse", flags, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if (server := os.fork()) == 0:
            try:
                end_in_time()
                _serve(device, user)
            finally:
                os._exit(0)
    finally:
        os.close(device)
    try:
        yield server
    finally:
        _libc.umount2(os.fsencode(place), _DETACH)
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(server, 0)


def _serve(device: int, user: int) -> None:
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError:  # unmounted
            return
        _, opcode, unique, node = struct.unpack_from("=IIQQ", request)
        if opcode in (_FORGET, _BATCH_FORGET):
            continue
        error, body = 0, b""
        if opcode == _INIT:
            body = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, 0)
        elif opcode == _LOOKUP:
            body = struct.pack("=QQQQII", _FILE, 0, 1, 0, 0, 0) + _attributes(_FILE, user)
        elif opcode == _GETATTR:
            body = struct.pack("=QII", 0, 0, 0) + _attributes(node, user)
        elif opcode == _OPEN:
            body = struct.pack("=QII", 1, 0, 0)
        elif opcode not in (_RELEASE, _FLUSH):
            error = -38  # ENOSYS
        os.write(device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)


def _attributes(node: int, user: int) -> bytes:
    mode = stat.S_IFREG | 0o600 if node == _FILE else stat.S_IFDIR | 0o700
    return struct.pack("=6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, user, user, 0, 4096, 0)
