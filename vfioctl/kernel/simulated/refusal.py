"""How a rule says no, or never answers."""

from __future__ import annotations

import errno as errnos


class Refusal(Exception):
    """A rule's errno."""

    def __init__(self, errno: int) -> None:
        self.errno = errno
        super().__init__(errnos.errorcode[errno])


class WouldBlock(Exception):
    """The kernel would not come back from this. Nothing outside a survey may ever ask for it."""
