"""Whether this process may change a host at all, and the words of the refusal. Writes nothing.

May not import pydantic: a screen asks before its first paint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vfioctl.errors import BadSpec, NotPermitted, StoreDamaged
from vfioctl.kernel.protocol import DRIVERS_PROBE, Kernel


def why_read_only(kernel: Kernel, problem: BadSpec | None, check_ledger: Callable[[], None]) -> str:
    """Return why nothing can be changed on a host, with what to do about it; empty if it can.

    `problem`: that of the configuration. `check_ledger`: raises StoreDamaged for a ledger that cannot be written."""
    try:
        refuse_read_only(kernel)
        if problem:
            raise problem
        refuse_unwritable_files(kernel, [DRIVERS_PROBE])
        check_ledger()
    except (BadSpec, NotPermitted, StoreDamaged) as error:
        return "; ".join(filter(None, (error.message, error.hint)))
    return ""


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
