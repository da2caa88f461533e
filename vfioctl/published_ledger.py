"""The documents that root publishes of a ledger: what users who may not read the ledger may know of it."""

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
GROUP = "vfioctl"
"""The group whose members may also know labels, keys and command lines of live claims, on a host that has the group."""


class PublishedLedger:
    """The documents of one ledger. `file`: that for all users; None if nothing is published of it."""

    def __init__(self, file: Path | None, ledger: Path, read_boot_id: Callable[[], str]) -> None:
        self._file, self._ledger, self._read_boot_id = file, ledger, read_boot_id

    def read(self) -> Published:
        """Return what is published for this user. Raises StoreDamaged, KernelRefused."""
        from vfioctl.core.published import read

        if os.access(self._for_group, os.R_OK):
            with suppress(OSError, ValueError):  # such as one of an earlier boot: the other document is for all
                return read(str(self._for_group), self._read_boot_id())
        try:
            return read(str(self._file), self._read_boot_id())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreDamaged(
                f"only root may read the ledger {self._ledger}, and {self._file} cannot be used: {why}",
                hint="run it as root; that writes the file again",
            ) from None

    @property
    def _for_group(self) -> Path:
        file = self._file or PUBLIC
        return file.with_name(f"{file.name.removesuffix('public.json')}group.json")

    def write(
        self,
        store: Callable[[], Store],
        records: Callable[[], Mapping[str, Record]],
        for_group: Callable[[], Mapping[str, Record]],
    ) -> None:
        """Write the documents, unless they are as they should be already; remove those of a ledger that was set aside.

        A host without a ledger needs neither `store` nor `records`, whose imports take a fifth of a listing."""
        if self._file is None:
            return
        try:
            is_empty = not os.lstat(self._ledger).st_size
        except OSError:
            for file in (self._file, self._for_group):
                with suppress(OSError):
                    os.unlink(file)
            return
        if is_empty:  # it is new; or it was emptied, which only this document shows
            return
        from vfioctl.core.snapshot import publish

        self._write_for_group(store, for_group)
        publish(store(), self._file, records(), self._read_boot_id)  # last: `is_newer` is about it

    def _write_for_group(self, store: Callable[[], Store], records: Callable[[], Mapping[str, Record]]) -> None:
        from vfioctl.core.snapshot import publish

        group = _group()
        if group is None:
            with suppress(OSError):
                os.unlink(self._for_group)
            return
        publish(store(), self._for_group, records(), self._read_boot_id, group=group)

    @property
    def is_newer(self) -> bool:
        """Whether the document is newer than the ledger. False if in doubt."""
        from vfioctl.core.published import is_newer

        return self._file is None or is_newer(self._file, self._ledger)


def _group() -> int | None:
    """The number of the group, if /etc/group has it. Other sources, such as LDAP, could keep each change waiting."""
    try:
        lines = Path("/etc/group").read_text(errors="replace").splitlines()
    except OSError:
        return None
    numbers = [fields[2] for line in lines if len(fields := line.split(":")) > 3 and fields[0] == GROUP]
    return int(numbers[0]) if numbers and numbers[0].isascii() and numbers[0].isdecimal() else None
