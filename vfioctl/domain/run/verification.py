"""Compares a running domain with its document. Reads the host and libvirt, and may not write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from shlex import quote

from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.libvirt import URI, DomainXml
from vfioctl.domain.model.verification import Area, State, Verification, VerifiedFact, unknown
from vfioctl.domain.probe.process import NotFound, open_groups, read_qemu, still_runs
from vfioctl.domain.run.verify.cpus import cpu_facts
from vfioctl.domain.run.verify.devices import definition_facts, device_facts, devices_given
from vfioctl.domain.run.verify.guest import Wanted, guest_facts, unasked, why_no_agent
from vfioctl.domain.run.verify.memory import memory_facts
from vfioctl.domain.run.verify.subject import Subject
from vfioctl.errors import HostError, VfioctlError
from vfioctl.kernel.host_paths import MDEV_DEVICES
from vfioctl.kernel.lenient import link_name, text_of
from vfioctl.kernel.protocol import PCI_DEVICES, Reader

_GPU_CLASSES = ("0x03", "0x1200")


def verified(kernel: Reader, uri: str, domain: DomainXml, *, guest: bool) -> Verification:
    """Return what a running domain is, compared with its document. Raises HostError if it does not run, BadDocument."""
    if not domain.is_active:
        raise HostError(f"domain {domain.name} does not run", hint=f"virsh start {quote(domain.name)}")
    virsh = "virsh" if uri == URI else f"virsh -c {quote(uri)}"
    subject = Subject(Domain(parse(domain.live)), quote(domain.name), virsh)
    facts: list[VerifiedFact] = []
    qemu = None
    try:
        qemu = read_qemu(kernel, domain.name, domain.uuid)
    except NotFound as error:
        facts.append(unknown(Area.CPUS, "the domain's QEMU process", "", str(error)))
    else:
        facts += cpu_facts(subject, qemu)
        facts += memory_facts(subject, qemu)
        devices = {*subject.domain.host_devices, *devices_given(qemu.arguments)}
        paths = {device: f"{PCI_DEVICES if ':' in device else MDEV_DEVICES}/{device}" for device in devices}
        groups = {device: link_name(kernel, f"{path}/iommu_group") for device, path in paths.items()}
        facts += device_facts(subject, qemu.arguments, groups, partial(open_groups, kernel, qemu.pid))
    if domain.defined:
        facts += definition_facts(subject, Domain(parse(domain.defined)))
    if guest:
        facts += _in_guest(kernel, uri, domain, subject)
    if qemu is not None and not still_runs(kernel, qemu, domain.uuid):
        hint = f"vfioctl domain verify {quote(domain.name)} looks again"
        raise HostError(f"process {qemu.pid} of domain {domain.name} ended while it was looked at", hint=hint)
    pid = qemu.pid if qemu else None
    return Verification(name=domain.name, uuid=domain.uuid, pid=pid, state=_state(facts), facts=tuple(facts))


def _state(facts: Sequence[VerifiedFact]) -> State:
    """Return what all facts say together. A command line alone is of no process that runs."""
    if any(fact.state is State.DIFFERS for fact in facts):
        return State.DIFFERS
    seen = any(fact.state is State.OK and fact.area in (Area.CPUS, Area.MEMORY) for fact in facts)
    return State.OK if seen else State.UNKNOWN


def _in_guest(kernel: Reader, uri: str, domain: DomainXml, subject: Subject) -> Iterator[VerifiedFact]:
    gpus = list(_gpus(kernel, subject))
    if not gpus:
        return
    if why := why_no_agent(subject):
        yield from unasked(gpus, why)
        return

    def ask(paths: Sequence[str]) -> Mapping[str, str]:
        return dict(kernel.ask_libvirt(uri, "guest_files", domain.name, *paths))

    try:
        yield from list(guest_facts(subject, gpus, ask))
    except VfioctlError as error:
        reason = error.kernel_said or error.hint
        yield from unasked(gpus, f"{error.message}: {reason}"[:300] if reason else error.message)


def _gpus(kernel: Reader, subject: Subject) -> Iterator[Wanted]:
    for device in subject.domain.host_devices:
        if ":" not in device:
            yield Wanted(device, "", "")
            continue
        vendor, kind, code, width = (
            text_of(kernel, f"{PCI_DEVICES}/{device}/{name}").strip()
            for name in ("vendor", "device", "class", "current_link_width")
        )
        if not code or code.startswith(_GPU_CLASSES):
            known = f"{vendor.removeprefix('0x')}:{kind.removeprefix('0x')}" if vendor and kind else ""
            yield Wanted(device, width if width.isdecimal() and width != "0" else "", known)
