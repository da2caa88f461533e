"""The host's lock: an advisory lock (flock) on one file, which the kernel releases when the process ends."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vfioctl.errors import Busy, NotPermitted
from vfioctl.kernel.trusted import KEEP_TO_ROOT, PRIVATE_DIRECTORY, PRIVATE_FILE, Untrusted, opened_directory


@contextmanager
def held(
    lock: Path, *, wait: float, waiting: Callable[[], None] | None = None, check: Callable[[], None] | None = None
) -> Iterator[int]:
    """Holds the lock; the value is its file descriptor. `waiting` is called once if another process holds it,
    `check` again and again until then; it may raise. Raises Busy after `wait` seconds, NotPermitted."""
    fd = _open(lock)
    try:
        if not _acquired(fd):
            if waiting:
                waiting()
            _acquire(fd, lock, time.monotonic() + wait, check)
        with suppress(OSError):  # for the error message of another process; a full disk is no error
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield fd
    finally:
        # Unlock explicitly: closing is not enough while a worker stuck in a write has the same description open.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


@contextmanager
def held_in_memory(
    lock: threading.Lock, *, wait: float, waiting: Callable[[], None] | None, check: Callable[[], None] | None
) -> Iterator[None]:
    """As `held`, for a host that only the threads of this process share."""
    if not lock.acquire(blocking=False):
        if waiting:
            waiting()
        until = time.monotonic() + wait
        while not lock.acquire(timeout=min(0.02, max(0.0, until - time.monotonic()))):
            if check:
                check()
            if time.monotonic() >= until:
                raise Busy("another vfioctl is changing this host", hint="wait for it to finish")
    try:
        yield
    finally:
        lock.release()


def _open(lock: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with opened_directory(str(lock.parent), make=PRIVATE_DIRECTORY) as directory:
            return os.open(lock.name, flags, PRIVATE_FILE, dir_fd=directory)
    except Untrusted as error:
        raise NotPermitted(f"the lock {lock} is refused: {error.strerror}", hint=KEEP_TO_ROOT) from None
    except OSError as error:
        why = f"the lock {lock} cannot be opened: {error.strerror}"
        raise NotPermitted(why, hint="run it as root, or name another --ledger") from None


def _acquire(fd: int, lock: Path, until: float, check: Callable[[], None] | None) -> None:
    while not _acquired(fd):
        if check:
            check()
        if time.monotonic() > until:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            why = "another vfioctl is changing this host" + (f" (process {holder})" if holder else "")
            hint = "wait for it to finish"
            if holder.isdecimal() and not os.path.exists(f"/proc/{holder}"):
                why = f"a write that process {holder} started is still under way in the kernel"
                hint = "run recover when the holder has released the device, or after a reboot"
            raise Busy(why, hint=hint, facts={"lock": str(lock), "pid": holder})
        time.sleep(0.02)


def _acquired(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
