"""Descriptors that belong to a block of code, and system calls about descriptors that Python does not have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Give an open descriptor, and close it at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def call(number: int, *arguments: int | bytes) -> int:
    """Make the system call with this number. Raises OSError. Integers are passed with 64 bits, as the kernel takes
    them: by itself, a variadic function gets 32 of them."""
    import ctypes  # loads slowly, and few programs need it

    wide = (ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments)
    result = int(_library().syscall(ctypes.c_long(number), *wide))
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
    return result


@cache
def _library() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
