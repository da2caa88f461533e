"""Reads the current values of resources and facts. May not write; files that may block are read in parallel workers."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import Any

from vfioctl.core.change import Change, Fact, Key
from vfioctl.core.registry import Registry
from vfioctl.errors import KernelRefused, Stuck
from vfioctl.kernel.lenient import text_or_errno
from vfioctl.kernel.protocol import Kernel, Reader, Unanswered

ANSWER_TIMEOUT = 10.0
"""Timeout in seconds. A starting driver holds its device's lock; the NVIDIA driver does so for more than three."""


def read_changes(kernel: Kernel, registry: Registry, changes: Iterable[Change]) -> Mapping[Key, str | None]:
    """Return the current value of each resource, None if unreadable. Raises Stuck if a required read never returns."""
    changes = tuple(changes)
    owners = {
        path: (change, registry.resource(change))
        for change in changes
        for path in registry.resource(change).blocking(change)
    }
    texts: dict[str, str] = {}
    refused: dict[str, int] = {}
    if owners:
        timeout = ANSWER_TIMEOUT if any(resource.must_answer for _, resource in owners.values()) else None
        for path, answer in kernel.survey(text_or_errno, owners, timeout=timeout):
            change, resource = owners[path]
            if isinstance(answer, Unanswered):
                if resource.must_answer:
                    raise no_answer(change.subject, answer.reason)
                refused[path] = errno.ETIMEDOUT
            elif isinstance(answer, int):
                refused[path] = answer
            else:
                texts[path] = answer
    reader: Any = _Prefetched(kernel, texts, refused)
    return {change.key: registry.resource(change).read(reader, change) for change in changes}


def read_facts(kernel: Kernel, registry: Registry, facts: Iterable[Fact]) -> Mapping[tuple[str, str], Fact]:
    """Return the current facts by kind and subject, without those whose device is gone. Raises Stuck."""
    by_kind: dict[str, list[Fact]] = {}
    for fact in facts:
        by_kind.setdefault(fact.kind, []).append(fact)
    return {
        (kind, subject): now
        for kind, alike in by_kind.items()
        for subject, now in registry.source(kind).read(kernel, alike).items()
    }


def no_answer(subject: str, reason: str) -> Stuck:
    """Return the error for a device that does not answer because a write to it is still under way."""
    return Stuck(
        f"{subject} does not answer: {reason}",
        hint="a write to it is still under way in the kernel; when it has ended, or after a reboot, recover",
        next_command="vfioctl recover",
    )


class _Prefetched:
    """A reader that serves some files from memory and passes other requests to the host."""

    def __init__(self, reader: Reader, texts: Mapping[str, str], refused: Mapping[str, int]) -> None:
        self._reader, self._texts, self._refused = reader, texts, refused

    def read(self, path: str) -> str:
        if path in self._refused:
            raise KernelRefused(path, self._refused[path])
        return self._texts[path] if path in self._texts else self._reader.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)
