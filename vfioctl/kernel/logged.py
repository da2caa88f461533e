"""A wrapper that logs the calls to a kernel: writes and other effects at INFO, reads and surveys at DEBUG. Used only
when a log is wanted. Changes no result. Of a document it logs the length: there may be passwords in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from vfioctl.errors import KernelRefused, VfioctlError
from vfioctl.kernel.protocol import Kernel, Unanswered

_log = logging.getLogger("vfioctl.kernel")
_LONGEST = 200
EFFECTS = frozenset(
    {
        "write",
        "persist",
        "set_compute_mode",
        "tell_mps",
        "set_unit",
        "replace_file",
        "replace_link",
        "set_permissions",
        "manage_vfs",
        "load",
        "rom",
        "tell_libvirt",
        "refuse_devices",
        "set_unit_devices",
    }
)
READS = frozenset(
    {
        "read", "link", "children", "has", "device_number", "writable", "directory", "entries", "texts_below",
        "properties", "nvml", "open_nodes", "made_by_root", "below", "claimed", "user", "unit_states", "config",
        "write_ended", "viable", "ask_libvirt", "disk_image", "permissions", "modified",
        "device_programs", "restricted_cgroups", "unit_devices",
        "mps_usage", "ask_mps",
    }
)  # fmt: skip


def logged(kernel: Kernel) -> Kernel:
    """The same host; its calls are logged (logger `vfioctl.kernel`)."""
    return cast("Kernel", Logged(kernel))


class Logged:
    """Passes every call on to the host."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._kernel, name)
        level = logging.INFO if name in EFFECTS else logging.DEBUG
        if name in EFFECTS | READS and _log.isEnabledFor(level):
            return partial(_call, attribute, name, level)
        return attribute

    def survey(
        self, reader: Callable[..., Callable[[str], Any]], subjects: Iterable[str], **how: Any
    ) -> Iterator[tuple[str, Any]]:
        """As the host's own `survey`. Logs the result for each subject, not the single reads of its workers."""
        begun = time.monotonic()
        answers = self._kernel.survey(reader, subjects, **how)
        return _logged_answers(reader.__qualname__, answers, begun)


def _logged_answers(name: str, answers: Iterator[tuple[str, Any]], begun: float) -> Iterator[tuple[str, Any]]:
    for subject, answer in answers:
        result = f"no answer: {answer.reason}" if isinstance(answer, Unanswered) else _short(answer)
        _log.debug("survey %s %s: %s (%s)", name, subject, result, _since(begun))
        yield subject, answer


def _call(function: Callable[..., Any], name: str, level: int, /, *arguments: Any, **options: Any) -> Any:
    call = f"{name} {_words(arguments, options, values=level > logging.DEBUG)}".rstrip()
    begun = time.monotonic()
    try:
        answer = function(*arguments, **options)
    except VfioctlError as error:
        said = error.symbol if isinstance(error, KernelRefused) else f"{type(error).__name__}: {error.message}"
        _log.log(level, "%s: %s (%s)", call, said, _since(begun))
        raise
    said = "done" if answer is None or callable(answer) else _short(answer)
    _log.log(level, "%s: %s (%s)", call, said, _since(begun))
    return answer


def _words(arguments: tuple[Any, ...], options: dict[str, Any], *, values: bool) -> str:
    """The arguments of a call, as `/sys/... <- 'vfio-pci'`: its subject, and with `values` the rest."""
    subject, *rest = arguments or ("",)
    if not values or not (rest or options):
        return str(subject)
    words = [_short(text) for text in rest] + [f"{name}={_short(value)}" for name, value in options.items()]
    return f"{subject} <- {', '.join(words)}"


def _short(value: object) -> str:
    text = repr(_without_documents(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _without_documents(value: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)(map(_without_documents, value))
    if isinstance(value, str) and value.lstrip().startswith("<"):
        return f"a document of {len(value)} characters"
    return value


def _since(begun: float) -> str:
    return f"{(time.monotonic() - begun) * 1000:.1f} ms"
