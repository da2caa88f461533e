"""Whether this process may change a host at all, and the words of the refusal. Writes nothing.

May not import pydantic: a screen asks before its first paint."""

from __future__ import annotations

from collections.abc import Sequence

from vfioctl.errors import NotPermitted
from vfioctl.kernel.protocol import Kernel


def refuse_read_only(kernel: Kernel) -> None:
    """Raise NotPermitted for a host that cannot be changed: captured or recorded."""
    if kernel.read_only:
        raise NotPermitted(kernel.read_only, hint="use --simulate to try changes")


def refuse_unwritable_files(kernel: Kernel, files: Sequence[str]) -> None:
    """Raise NotPermitted with the names of those of the files that exist and that this process may not write."""
    refused = [file for file in files if kernel.has(file) and not kernel.writable(file)]
    if refused:
        raise NotPermitted(
            f"not permitted to write {', '.join(refused)}",
            hint="run it as root; in a container, /sys must be mounted read-write",
            facts={"files": refused},
        )
