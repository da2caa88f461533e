"""The feeds of a simulated host: its file, which any process may change. May not write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vfioctl.errors import BadDocument
from vfioctl.kernel.feeds import PCI, UNWATCHED, XID, Feed, Lost, Notice, stamp
from vfioctl.kernel.protocol import NOT_LISTED, PCI_DEVICES
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.kernel.simulated.groups import driver_of

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


class ErrorFeed(Feed):
    """What NVML reports: the numbers that are added to the fact `sim:ADDRESS xids`. Errors of a GPU that was not on the
    nvidia driver when the feed was opened are not watched."""

    def __init__(self, tree: Callable[[], Tree], gpus: Sequence[str]) -> None:
        """Raises Lost if the host's file cannot be read."""
        self._tree = tree
        self._seen = {gpu: len(self._xids(gpu)) for gpu in gpus if self._is_listed(gpu)}
        self._unwatched = [Notice(UNWATCHED, gpu, (gpu,), NOT_LISTED) for gpu in gpus if gpu not in self._seen]

    def read(self) -> list[Notice]:
        """Return the errors since the last call. Raises Lost if the host's file cannot be read."""
        notices, self._unwatched = self._unwatched, []
        for gpu, seen in self._seen.items():
            xids = self._xids(gpu)
            self._seen[gpu] = len(xids)
            notices += [Notice(XID, gpu, (gpu,), xid) for xid in xids[seen:]]
        return notices

    def _xids(self, gpu: str) -> list[str]:
        return self._now().properties.get(f"sim:{gpu}", {}).get("xids", "").split()

    def _now(self) -> Tree:
        try:
            return self._tree()
        except BadDocument as error:
            raise Lost(error.message) from None

    def _is_listed(self, gpu: str) -> bool:
        tree = self._now()
        return driver_of(tree, tree.resolve(f"{PCI_DEVICES}/{gpu}")) == "nvidia"
