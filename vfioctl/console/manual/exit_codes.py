"""The exit codes with their meanings, read from the error tree and its docstring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vfioctl import errors
from vfioctl.errors import VfioctlError


class ExitCode(NamedTuple):
    """One branch of the error tree."""

    code: int
    kind: type[VfioctlError]
    meaning: str

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the errors of this branch."""
        return () if self.kind is VfioctlError else tuple(child.__name__ for child in _children(self.kind))


OTHERS = (
    (0, "success, which includes that there was nothing to do"),
    (129, "SIGHUP: the terminal is gone"),
    (130, "SIGINT: Ctrl-C"),
    (141, "the reader of stdout has closed it"),
    (143, "SIGTERM"),
)
"""The codes that no error has."""


def exit_codes() -> Iterator[ExitCode]:
    """Yield the branches of the error tree, by exit code."""
    branches: list[type[VfioctlError]] = [VfioctlError, *_children(VfioctlError)]
    for kind in sorted(branches, key=lambda kind: kind.exit_code):
        yield ExitCode(kind.exit_code, kind, _meaning(kind))


def _meaning(kind: type[VfioctlError]) -> str:
    lines = (line for line in (errors.__doc__ or "").splitlines() if f" {kind.__name__} " in line)
    parts = next(lines, "").split(str(kind.exit_code), 1)[1:]
    return parts[0].strip() if parts else "anything else that can be explained"


def _children(kind: type[VfioctlError]) -> list[type[VfioctlError]]:
    """Those of the tree itself, whatever other modules have been imported."""
    return [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
