"""The feed of a simulated host: its file, which any process may change. May not write it."""

from __future__ import annotations

from pathlib import Path

from vfioctl.errors import BadDocument
from vfioctl.kernel.feeds import PCI, Feed, Lost, Notice, stamp
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import form

_OWN = "sim:"
"""The beginning of the lines that only the simulation needs."""


class FileFeed(Feed):
    """Changes of the file. One notice for each function of which a line differs."""

    def __init__(self, file: Path) -> None:
        """Raises Lost if the file cannot be read."""
        self._file, self._stamp = file, stamp(file)
        self._lines = self._read()

    def read(self) -> list[Notice]:
        """Return the notices since the last call. Raises Lost if something else than a function differs."""
        now = stamp(self._file)
        if now == self._stamp:
            return []
        self._stamp, before = now, self._lines
        self._lines = self._read()
        changed = [line for line in before ^ self._lines if not line.startswith(_OWN)]
        subjects = {functions[-1] for line in changed if (functions := PCI.findall(line))}
        if changed and not subjects:
            raise Lost("something other than a PCI function changed")
        return [Notice("change", subject, (subject,)) for subject in sorted(subjects)]

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(form(read_tree(self._file)).splitlines())
        except BadDocument as error:
            raise Lost(error.message) from None
