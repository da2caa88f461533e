"""Where a session gets its host from: this machine, a captured directory, a recorded host, a simulated one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vfioctl.config import read_config
from vfioctl.errors import BadDocument, KernelRefused
from vfioctl.kernel.recorded.bundled import file_of
from vfioctl.kernel.simulated.files import ledger_of, simulated_file
from vfioctl.published_ledger import PUBLIC
from vfioctl.session import LEDGER, Session

if TYPE_CHECKING:
    from vfioctl.kernel.protocol import Kernel
    from vfioctl.kernel.simulated.faults import Fault

S = TypeVar("S", bound=Session)


def live(session: type[S], ledger: Path | None = None) -> S:
    """Return a session for this machine."""
    from vfioctl.kernel.live.host import Live

    config = read_config()
    public = ledger.with_name(f"{ledger.name}.public.json") if ledger else PUBLIC
    kernel = Live(timeouts=config.timeouts, believed=config.believed_users)
    return session(kernel, ledger or LEDGER, config=config, public=public)


def at(session: type[S], root: Path, ledger: Path | None = None) -> S:
    """Return a read-only session for a captured `sys/ proc/ dev/` tree. Raises BadDocument."""
    try:
        place = root.resolve(strict=True)
        kernel = _captured(place)
    except (OSError, RuntimeError, ValueError) as error:  # a symlink loop, or a string that is no path
        raise BadDocument(f"{str(root)[:200]} cannot be read: {error}"[:400]) from None
    except KernelRefused:
        raise BadDocument(f"{root} holds no captured host", hint="it should hold sys/, proc/ and dev/") from None
    return session(kernel, ledger or (ledger_of(place) if place.name else LEDGER))


def recorded(session: type[S], name: str, ledger: Path | None = None) -> S:
    """Return a read-only session for a host file, or a bundled host by name. Raises BadDocument."""
    from vfioctl.kernel.recorded.host import Recorded, read_tree

    file = file_of(name)
    return session(Recorded(read_tree(file), f"recorded host {file.name}"), ledger or ledger_of(file))


def simulated(session: type[S], name: str, ledger: Path | None = None, *, faults: Sequence[Fault] = ()) -> S:
    """Return a session for a simulated host: a host file, or a bundled host by name. Changes are saved to the file.

    A bundled host is first copied to the user's state directory (`simulated_file`). Raises BadDocument."""
    from vfioctl.kernel.simulated.faults import parse_fault
    from vfioctl.kernel.simulated.host import Simulated

    file = simulated_file(name)
    texts = os.environ.get("VFIOCTL_FAULTS", "").split(",")
    faults = (*faults, *(parse_fault(text) for text in texts if text))
    return session(Simulated.at(file, faults=faults), ledger or ledger_of(file), settle=0.0)


def _captured(place: Path) -> Kernel:
    """The host in a directory; this machine, but read-only, for /. Raises OSError, KernelRefused."""
    if not place.name:
        from vfioctl.kernel.live.host import Live

        return Live(read_only=True)
    from vfioctl.kernel.captured.host import Captured

    kernel = Captured(str(place))
    kernel.children("/sys")
    return kernel
