"""Descriptors that belong to a block of code. Opens nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Give an open descriptor, and close it at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)
