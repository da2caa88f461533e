"""Makes system calls that Python does not have."""

from __future__ import annotations

import ctypes
import os

_library = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """Make the call with this number. Raises OSError.

    Integers are passed with 64 bits, as the kernel takes them: by itself, a variadic function gets 32 of them.
    """
    wide = (ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments)
    result = int(_library.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
    return result
