"""Says which of libvirt's domains belong to a fleet: those that it has defined. May not do input or output."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from vfioctl.errors import Foreign

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfioctl.domain.define.definitions import Known
    from vfioctl.domain.document.definition import Definition
    from vfioctl.domain.model.fleet import FleetSpec


def says_of(fleet: str, known: Known, uri: str) -> Definition:
    """Return what a domain of the fleet says. Raises Foreign for any other domain."""
    name, says = known.domain.name, known.says
    if says and says.ours and says.fleet == fleet:
        return says
    if says and says.ours:
        by, foreign = f"by fleet {says.fleet}" if says.fleet else "by no fleet", ""
    else:
        by, foreign = "and not by vfioctl", " --foreign"
    raise Foreign(
        f"domain {name} is defined already, {by}",
        hint="give the domain of the file another name, or remove the definition that is there first",
        next_command=f"vfioctl domain undefine {quote(name)}{foreign} --connect {quote(uri)}",
    )


def leaving_from(spec: FleetSpec, known: Mapping[str, Known]) -> list[Known]:
    """Return the domains of the fleet that its file does not name any more."""
    names = {each.name for each in spec.domains}
    return [each for name, each in known.items() if name not in names and each.says and each.says.fleet == spec.fleet]
