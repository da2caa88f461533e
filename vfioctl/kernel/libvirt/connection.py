"""Connections to libvirt, and its errors as plain data. Alone imports libvirt-python, an extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
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


def on_connection(
    *, writes: bool = False, instead: Mapping[int, object] | None = None
) -> Callable[[Callable[..., object]], Callable[..., Answer]]:
    """Make a function of a connection, the module libvirt and words a function of a URI and words that answers.

    `instead`: what it answers for errors of libvirt, by their numbers. `writes`: see `connected`.
    """

    def question_of(ask: Callable[..., object]) -> Callable[..., Answer]:
        @wraps(ask)
        def question(uri: str, *words: str) -> Answer:
            def on_uri() -> object:
                with connected(uri, writes=writes) as (connection, libvirt):
                    return ask(connection, libvirt, *words)

            value, code, text = answered(on_uri)
            return (instead[code], 0, "") if instead and code in instead else (value, code, text)

        return question

    return question_of


def code_of(error: Any) -> int:
    """Return libvirt's number of an error (virErrorNumber); never 0."""
    code = error.get_error_code() if hasattr(error, "get_error_code") else 0
    return int(code) or 1
