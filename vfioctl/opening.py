"""Opens the session that a command line selects, and sets up its logging. May not import a subsystem."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl import sources
from vfioctl.session import Session

if TYPE_CHECKING:
    from vfioctl.console.choice import Choice
    from vfioctl.core.engine import Engine

SOCKET_VARIABLE = "VFIOCTL_JOURNALD_SOCKET"
"""Environment variable: a socket to use instead of journald's. Changes of simulated hosts are sent there too."""


def open_session(choice: Choice) -> Session:
    """Return the session of the selected host. Raises BadSpec, BadDocument."""
    option, value = choice.host
    ledger = choice.ledger
    if option == "root":
        session = sources.at(CommandSession, Path(value), ledger)
    elif option == "host":
        session = sources.recorded(CommandSession, value, ledger)
    elif option == "simulate":
        session = sources.simulated(CommandSession, value, ledger)
    else:
        session = sources.live(CommandSession, ledger)
    session.follow(choice, live=not option)
    return session


class CommandSession(Session):
    """A session that logs its changes as the command line asks."""

    _choice: Choice
    _live = False

    def follow(self, choice: Choice, *, live: bool) -> None:
        """Set up logging. `live`: the host is this machine, so its changes also go to the system journal."""
        self._choice, self._live = choice, live
        if live:
            choice.at_end.callback(self._publish_at_end)
        if choice.log_level:
            from vfioctl.console.logs import log_to_stderr
            from vfioctl.kernel.logged import logged

            choice.at_end.callback(log_to_stderr(choice.log_level))
            self.kernel = logged(self.kernel)

    def _publish_at_end(self) -> None:
        """Publish the ledger again if a reboot, or a process that was killed, has left something else."""
        with suppress(KeyboardInterrupt):
            if not self.published.is_newer:
                self.publish()

    @cached_property
    def engine(self) -> Engine:
        # logging is set up only here: listings start faster without it
        socket = os.environ.get(SOCKET_VARIABLE, "")
        if self._live or socket:
            from vfioctl.journald import log_to_journal

            self._choice.at_end.callback(log_to_journal(socket) if socket else log_to_journal())
        return super().engine
