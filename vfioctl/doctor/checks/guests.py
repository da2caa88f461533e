"""Checks of what planned guests need: mappings, locked memory, and a libvirt and QEMU that know it. May not do input or
output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vfioctl.doctor.model.facts import Facts, LockLimit, addresses_of
from vfioctl.doctor.model.result import Devices, Finding, failed, not_applicable, note, passed, unknown
from vfioctl.domain.model.address_space import DEFAULT_HOLE
from vfioctl.domain.model.planned import LOCK_EXTRA, PlannedGuest
from vfioctl.domain.model.versions import SINCE, WITH_DEVICES, version_of, version_text
from vfioctl.errors import some_of
from vfioctl.units import format_size

_ENTRY_OPTION = "options vfio_iommu_type1 dma_entry_limit"
_SMALLEST = 64 << 20
"""Bytes: no guest is as small as that."""
_MOST = 3
_CONTROL_NODE, _IOMMUFD = "/dev/vfio/vfio", "/dev/iommu"


def dma_entries(facts: Facts) -> Iterator[Finding]:
    """Whether VFIO can map the memory of the planned guests. Each call of VFIO_IOMMU_MAP_DMA takes one entry, and QEMU
    maps RAM in a few calls, unless a guest makes it map small pieces."""
    file = facts.dma_entries
    if file.refused:
        yield file.not_told()
        return
    if file.text is None:
        yield not_applicable(f"no {file.path}")
        return
    if not (file.text.strip().isascii() and file.text.strip().isdecimal() and len(file.text) < 20):
        yield unknown(file.shown, "It could not be told: it is no number.")
        return
    limit = int(file.text) + 1  # no guest misses the last mapping
    over = [guest for guest in facts.guests if _mappings(guest) > limit]
    if over:
        needs = (f"{g.title} may need {_mappings(g)}, for {g.pieces_for}" for g in over)
        meaning = "VFIO may refuse to map all of the guest's memory: its devices, or the guest, do not start."
        finding = failed if any(guest.security for guest in over) else note
        wanted = 1 << max(map(_mappings, over)).bit_length()
        remedy = (
            f"{_ENTRY_OPTION}={wanted} in /etc/modprobe.d/vfio.conf; until the next boot, for guests that start later:"
        )
        yield finding(f"{file.shown}; {some_of(needs, _MOST)}", meaning, remedy, command=f"echo {wanted} > {file.path}")
    else:
        yield passed(f"{file.shown}, and no guest is planned that needs more")


def _mappings(guest: PlannedGuest) -> int:
    """Return the most mappings that a guest may need for its memory in small pieces."""
    return -(-guest.memory // guest.piece) if guest.piece else 0


def memlock(facts: Facts) -> Iterator[Finding]:
    """Whether the users who may open the nodes of claims may lock the memory of a guest, which VFIO does for QEMU.
    libvirt sets the limit of its own guests."""
    if facts.labels_hidden:
        meaning = "It could not be told which users may start a guest with the devices of claims."
        yield unknown("claims, whose labels only root and the group vfioctl may read", meaning, "run it as root")
        return
    if not facts.lock_limits:
        yield not_applicable("no user but root may open the nodes of a claim")
        return
    findings = [finding for limit in facts.lock_limits for finding in _locked(limit)]
    if findings:
        yield from findings
    else:
        shown = dict.fromkeys(f"{limit.user}: {_shown(limit.limit)} ({limit.source})" for limit in facts.lock_limits)
        yield passed(f"memory that may be locked: {some_of(shown, _MOST)}")


def _locked(limit: LockLimit) -> Iterator[Finding]:
    if limit.unread is not None:
        yield limit.unread.not_told()
        return
    memory = None if limit.memory is None else limit.memory + LOCK_EXTRA
    if limit.limit is None or (memory is not None and limit.limit >= memory):
        return
    whose = f"claim {limit.claim}, which {limit.user} may open"
    evidence = f"{whose}: {_shown(limit.limit)} may be locked ({limit.source})"
    needed = "unlimited" if memory is None else str(-(-memory // 1024))
    remedy = f"`{limit.domain} - memlock {needed}` in /etc/security/limits.d/vfio.conf, and a new login"
    if memory is not None:
        evidence += f", and the guest needs {format_size(memory)}"
    if memory is not None or limit.limit <= _SMALLEST:
        meaning = "QEMU cannot start a guest with the device: VFIO locks all of its memory (Cannot allocate memory)."
        yield failed(evidence, meaning, remedy)
    else:
        meaning = f"QEMU cannot start a guest of more than {_shown(limit.limit)}: VFIO locks all of its memory."
        yield note(evidence, meaning, remedy)


def _shown(size: int | None) -> str:
    return "any amount" if size is None else format_size(size)


class _Need(NamedTuple):
    """What a guest needs of libvirt, and why."""

    what: str
    since: tuple[int, int]
    why: str
    devices: Devices = ()


def libvirt(facts: Facts) -> Iterator[Finding]:
    """Whether libvirt and QEMU know what guests with these devices need."""
    if facts.libvirt is None:
        yield not_applicable("no libvirt, or nothing that it could give to a guest")
        return
    if facts.libvirt.unknown:
        meaning = "It could not be told whether libvirt and QEMU know what guests with devices need."
        yield unknown(f"libvirt: {facts.libvirt.unknown}", meaning, command="systemctl status libvirtd virtqemud")
        return
    own, qemu = version_of(facts.libvirt.version), version_of(facts.libvirt.hypervisor)
    shown = f"libvirt {version_text(own) if own else '?'}, QEMU {version_text(qemu) if qemu else '?'}"
    findings = []
    for need in _needs(facts) if own else ():
        if own and own < need.since:
            remedy = f"libvirt {version_text(need.since)} or later"
            findings.append(failed(f"{shown}; {need.why}", f"{need.what}.", remedy, devices=need.devices))
    for guest in facts.guests if qemu else ():
        since = WITH_DEVICES.get(guest.security)
        if qemu and since and qemu < since:
            meaning = f"This QEMU gives a guest with {guest.security} no devices of the host: it does not start."
            findings.append(failed(f"{shown}; {guest.title}", meaning, f"QEMU {version_text(since)} or later"))
    yield from findings
    if not findings:
        yield passed(shown)


def _needs(facts: Facts) -> Iterator[_Need]:
    if facts.has_dev and facts.nodes and _CONTROL_NODE not in facts.nodes:
        what = "Guests cannot open devices here: libvirt does not know iommufd, and the kernel has nothing else"
        yield _Need(what, SINCE["devices/hostdev/driver", "iommufd"], f"no {_CONTROL_NODE}, but {_IOMMUFD}")
    large = [gpu for gpu in facts.cards if gpu.prefetchable_64 > DEFAULT_HOLE]
    if large:
        what = "libvirt drops <maxphysaddr> without a word, and the guest has no addresses for such BARs"
        why = f"more than {format_size(DEFAULT_HOLE)} of 64-bit BARs: {some_of(addresses_of(large), _MOST)}"
        yield _Need(what, SINCE["cpu", "maxphysaddr"], why, addresses_of(large))
