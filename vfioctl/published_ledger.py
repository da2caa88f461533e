"""The document that root publishes of a ledger: what users who may not read the ledger may know of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.errors import StoreDamaged

if TYPE_CHECKING:
    from vfioctl.core.published import Published
    from vfioctl.core.snapshot import Record
    from vfioctl.core.store import Store

PUBLIC = Path("/run/vfioctl/public.json")
"""Of the live host's ledger. A reboot removes it, as it does marks."""


class PublishedLedger:
    """The document of one ledger. `file`: None if nothing is published of it."""

    def __init__(self, file: Path | None, ledger: Path, read_boot_id: Callable[[], str]) -> None:
        self._file, self._ledger, self._read_boot_id = file, ledger, read_boot_id

    def read(self) -> Published:
        """Return what is published. Raises StoreDamaged, KernelRefused."""
        from vfioctl.core.published import read

        try:
            return read(str(self._file), self._read_boot_id())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreDamaged(
                f"only root may read the ledger {self._ledger}, and {self._file} cannot be used: {why}",
                hint="run it as root; that writes the file again",
            ) from None

    def write(self, store: Callable[[], Store], records: Callable[[], Mapping[str, Record]]) -> None:
        """Write the document, unless it is as it should be already; remove that of a ledger that was set aside.

        A host without a ledger needs neither `store` nor `records`, whose imports take a fifth of a listing."""
        if self._file is None:
            return
        try:
            is_empty = not os.lstat(self._ledger).st_size
        except OSError:
            with suppress(OSError):
                os.unlink(self._file)
            return
        if is_empty:  # it is new; or it was emptied, which only this document shows
            return
        from vfioctl.core.snapshot import publish

        publish(store(), self._file, records(), self._read_boot_id)

    @property
    def is_newer(self) -> bool:
        """Whether the document is newer than the ledger. False if in doubt."""
        from vfioctl.core.published import is_newer

        return self._file is None or is_newer(self._file, self._ledger)
