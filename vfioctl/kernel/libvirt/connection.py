"""Connections to libvirt, and its errors as plain data. Alone imports libvirt-python, an extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from vfioctl.kernel.libvirt.answers import MISSING, NOT_INSTALLED, Answer

T = TypeVar("T")
_LONGEST_TEXT = 1000


@contextmanager
def connected(uri: str, *, writes: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yield a connection and the module. `writes`: it may change things, and read secrets; that needs more rights."""
    import libvirt

    libvirt.registerErrorHandler(lambda *_: None, None)  # it would write to stderr
    opened = (libvirt.open if writes else libvirt.openReadOnly)(uri)
    try:
        yield opened, libvirt
    finally:
        opened.close()


def answered(ask: Callable[[], T]) -> Answer:
    """Return what `ask` returns, or the error of libvirt that it raises, as an answer."""
    try:
        import libvirt
    except ImportError:
        return None, MISSING, NOT_INSTALLED
    try:
        return ask(), 0, ""
    except libvirt.libvirtError as error:
        return None, code_of(error), str(error).strip()[:_LONGEST_TEXT]


def code_of(error: Any) -> int:
    """Return libvirt's number of an error (virErrorNumber); never 0."""
    code = error.get_error_code() if hasattr(error, "get_error_code") else 0
    return int(code) or 1
