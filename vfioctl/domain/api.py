"""The use cases of domains."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfioctl.domain.model.finding import Finding
    from vfioctl.session import Session


class DomainApi:
    """The libvirt domains of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # -- checking ----------------------------------------------------------------------------------

    def check(self, text: str | bytes) -> tuple[Finding, ...]:
        """Return what is wrong with a domain's XML. Raises BadDocument if it is no XML."""
        from vfioctl.domain.xml import parse

        parse(text)
        return ()
