"""The use cases of domains."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vfioctl.core.change import Intent, Plan
    from vfioctl.domain.building import Built
    from vfioctl.domain.model.finding import CheckDocument
    from vfioctl.domain.model.spec import DomainSpec
    from vfioctl.domain.provisioning import Provisioning
    from vfioctl.session import Session


class DomainApi:
    """The libvirt domains of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # -- building ----------------------------------------------------------------------------------

    def spec(self, given: Mapping[str, Any], file: Path | None = None) -> DomainSpec:
        """Return a spec: the content of a TOML or YAML file, with what is given in its place. Raises BadSpec."""
        from vfioctl.domain.specs import read_spec

        return read_spec(given, file)

    def build(self, spec: DomainSpec) -> Built:
        """Return the domain of a spec, with the reason for each choice; see `Building.build` for the errors."""
        from vfioctl.domain.building import Building

        return Building(self._session).build(spec)

    # -- checking ----------------------------------------------------------------------------------

    def check(self, text: str | bytes, *, host: bool = True, version: tuple[int, ...] | None = None) -> CheckDocument:
        """Return what is wrong with a domain's XML. Raises BadDocument if it is no XML.

        `host`: whether it is also judged against this host, without libvirt. `version`: of the libvirt that will get
        it; nothing is said of names that older ones do not know if it is None.
        """
        from vfioctl.domain.checking import judged

        return judged(self._session if host else None, text, version)

    # -- libvirt's domains ---------------------------------------------------------------------------

    @cached_property
    def provisioning(self) -> Provisioning:
        """List, define and undefine libvirt's domains."""
        from vfioctl.domain.provisioning import Provisioning

        return Provisioning(self._session)

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent of this subsystem on the host as it is now."""
        return self.provisioning.replan(intent)
