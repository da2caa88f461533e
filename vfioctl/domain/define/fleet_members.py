"""Says which of libvirt's domains belong to a fleet: those that it has defined. May not do input or output."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from vfioctl.errors import Foreign

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfioctl.domain.define.definitions import Known
    from vfioctl.domain.document.reader import Domain
    from vfioctl.domain.model.fleet import FleetSpec


def says_of(fleet: str, known: Known, uri: str) -> Domain:
    """Return what a domain of the fleet says. Raises Foreign for any other domain."""
    name, says = known.domain.name, known.says
    if says and says.mark.is_own and says.mark.fleet == fleet:
        return says
    if says and says.mark.is_own:
        by, foreign = f"by fleet {says.mark.fleet}" if says.mark.fleet else "by no fleet", ""
    else:
        by, foreign = "and not by vfioctl", " --foreign"
    raise Foreign(
        f"domain {name} is defined already, {by}",
        hint="give the domain of the file another name, or remove the definition that is there first",
        next_command=f"vfioctl domain undefine {quote(name)}{foreign} --connect {quote(uri)}",
    )


def leaving_from(spec: FleetSpec, known: Mapping[str, Known]) -> list[Known]:
    """Return the domains of the fleet that its file does not name any more."""
    named = {domain.name for domain in spec.domains}
    members = (member for member in known.values() if member.says and member.says.mark.fleet == spec.fleet)
    return [member for member in members if member.domain.name not in named]
