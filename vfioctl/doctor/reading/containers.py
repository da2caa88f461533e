"""Adds what container runtimes are told of devices to the facts: CDI files, and Kata's settings. May not write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.containers.api import ContainersApi
from vfioctl.doctor.model.facts import CdiFile, KataLine
from vfioctl.doctor.probe.files import read_text
from vfioctl.errors import VfioctlError
from vfioctl.kernel.host_paths import CDI_ETC, CDI_RUN, KATA_CONFIGURATIONS
from vfioctl.kernel.lenient import names_in

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.doctor.model.facts import Facts
    from vfioctl.session import Session

_OWN = "vfioctl"
"""How the names of vfioctl's CDI files begin (`vfioctl.claims.model.cdi.file_name`)."""
_MOST_CLAIMS = 32


def with_containers(session: Session, facts: Facts, claims: Sequence[Claim]) -> Facts:
    """Return the facts with the CDI files that are named like vfioctl's, and with the check of Kata's settings: for the
    claims of pods, or for all devices on VFIO if CDI files name them."""
    kernel = session.kernel
    if any(name.startswith(_OWN) for place in (CDI_ETC, CDI_RUN) for name in names_in(kernel, place)):
        try:
            facts = replace(facts, cdi=tuple(_cdi_files(session)))
        except (VfioctlError, OSError) as error:
            facts = replace(facts, cdi_problem=str(error))
    pods = [claim.id for claim in claims if claim.owner.kind == "pod"][:_MOST_CLAIMS]
    if not (pods or facts.cdi) or not any(map(kernel.has, KATA_CONFIGURATIONS)):
        return facts
    try:
        return replace(facts, kata=tuple(dict.fromkeys(_kata(session, facts, pods or [None]))))
    except (VfioctlError, OSError) as error:
        return replace(facts, kata_problem=str(error))


def _cdi_files(session: Session) -> Iterator[CdiFile]:
    files = ContainersApi(session).cdi.files()
    for file in files:
        if file.path.rpartition("/")[2].startswith(_OWN):
            nodes = dict.fromkeys(node.partition(" ")[0] for nodes in file.devices.values() for node in nodes)
            missing = tuple(node for node in nodes if not session.kernel.has(node))
            others = (other for other in files if other.path != file.path and other.kind == file.kind)
            twins = tuple(other.path for other in others if not file.devices.keys().isdisjoint(other.devices))
            text = read_text(session.kernel, file.path) if file.problems else None
            yield CdiFile(file.path, file.problems, missing, twins, text if text and text.refused else None)


def _kata(session: Session, facts: Facts, claims: Sequence[str | None]) -> Iterator[KataLine]:
    api = ContainersApi(session).kata
    for claim in claims:
        for line in api.check(claim=claim, inventory=facts.inventory):
            yield KataLine(line.name, line.found, line.remedy, line.ok)
