"""Adds what a boot restores to the facts. May not write to the host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.doctor.checks.early import meant_for_vfio
from vfioctl.errors import VfioctlError
from vfioctl.persist.api import PersistApi
from vfioctl.persist.model.persistent import Owner, State

if TYPE_CHECKING:
    from vfioctl.doctor.model.facts import Facts
    from vfioctl.session import Session


def with_boot(session: Session, facts: Facts) -> Facts:
    """Return the facts with what a boot restores. What that needs is compared only if vfioctl restores something."""
    api = PersistApi(session)
    try:
        persistent = api.persistent(facts.inventory)
        if any(entry.owner is Owner.VFIOCTL and entry.state is State.FAILED for entry in persistent):
            persistent = api.persistent()  # NVML, which the checks do without, may tell which of two twins it is
        owns = any(entry.owner is Owner.VFIOCTL for entry in persistent)
        facts = replace(
            facts,
            persistent=persistent,
            switched_off=api.switched_off(),
            not_installed=api.not_installed() if owns else (),
            has_package=owns and api.has_package(),
            outdated_initramfs=api.outdated_initramfs(),
        )
    except (VfioctlError, OSError) as error:
        return replace(facts, persist_problem=str(error))
    return _with_early(session, facts)


def _with_early(session: Session, facts: Facts) -> Facts:
    """Return the facts with what may come before VFIO, if a boot should give it something: reading it takes long."""
    addresses = [meant.function.address for meant in meant_for_vfio(facts)]
    if not addresses:
        return facts
    from vfioctl.doctor.probe.boot import read_built_in, read_initramfs
    from vfioctl.kernel.initramfs import renewal

    kernel = session.kernel
    return replace(
        facts,
        built_in=read_built_in(kernel, addresses),
        initramfs=read_initramfs(kernel),
        in_initramfs=bool(renewal(kernel)),
    )
