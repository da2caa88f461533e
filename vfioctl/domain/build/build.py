"""Builds a domain, with devices and CPUs as a claim would get them. Reads host, ledger and libvirt; may not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.claim import Claim
from vfioctl.claims.model.passthrough_devices import devices_of as devices_named
from vfioctl.claims.model.passthrough_devices import managed_devices_of, subject_of, withheld_in
from vfioctl.domain.build.compose import composed
from vfioctl.domain.build.layout.cpus import widest_core
from vfioctl.domain.build.layout.devices import devices_of
from vfioctl.domain.build.layout.layout import Host, lay_out
from vfioctl.domain.build.layout.pci import placed_on
from vfioctl.domain.build.limits import refuse_elsewhere, refuse_several, reported, without_hugepages
from vfioctl.domain.build.placing import Placing, free_without_own_usage, relevant_nodes, without_own_usage
from vfioctl.domain.document.guest_topology import read_topology
from vfioctl.domain.document.needs import refuse_foreign_claim
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.templates import read_template
from vfioctl.domain.document.values import is_realtime, plugged
from vfioctl.domain.document.xml import MARK, Document, text_of
from vfioctl.domain.model.layout import Choice, Device, Layout
from vfioctl.domain.model.libvirt import NOBODY, Others
from vfioctl.domain.model.spec import DomainSpec, Policy, Smt
from vfioctl.domain.probe.host import read_all_memory, read_core_kinds, read_free_memory
from vfioctl.domain.probe.images import refuse_shared_images
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.machine import Processor
from vfioctl.inventory.model.preconditions import refuse_untyped
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.model.capacity import Capacity
from vfioctl.session import Session
from vfioctl.units import Uuid, parse_size

if TYPE_CHECKING:
    from vfioctl.domain.model.build import BuildDocument


_NOT_GIVEN = "the domain does not get this device"


class Built(NamedTuple):
    """A domain that was built, and not yet defined."""

    spec: DomainSpec
    """With the numbers that the template or the claim filled in."""
    layout: Layout
    document: Document
    inventory: Inventory
    processor: Processor

    @property
    def xml(self) -> str:
        """The document as text."""
        return text_of(self.document)

    @property
    def weaker(self) -> tuple[Choice, ...]:
        """The choices that are weaker than asked for, or than they could be."""
        return tuple(choice for choice in self.layout.choices if choice.weaker)

    @property
    def nccl_topology(self) -> str:
        """The topology for NCCL in the guest, as XML. A domain of one NUMA node has to be built for it."""
        from vfioctl.domain.build.nccl import nccl_topology

        return nccl_topology(self.layout, self.inventory, self.processor)

    @property
    def not_in_nccl_topology(self) -> Sequence[PciAddress]:
        """The functions of the domain that NCCL uses, and that the topology does not have."""
        from vfioctl.domain.build.nccl import left_out

        return left_out(self.layout, self.inventory)

    def summary(self) -> BuildDocument:
        """Return the document of `vfioctl domain build --json`."""
        from vfioctl.domain.model.build import BuildChoice, BuildDevice, BuildDocument

        spec, layout = self.spec, self.layout
        return BuildDocument(
            name=spec.name,
            template=spec.template,
            claim=spec.claim,
            vcpus=layout.vcpus,
            memory_bytes=layout.memory,
            pins=tuple(layout.pins.values()),
            devices=tuple(
                BuildDevice(device=device.subject, alias=f"ua-{device.label}", numa_node=device.node, cell=bus.cell)
                for bus in layout.expanders
                for device, *_ in placed_on([bus])
            ),
            choices=tuple(BuildChoice(**choice._asdict()) for choice in layout.choices),
            xml=self.xml,
        )


class DomainBuilder:
    """Builds domains on one host."""

    def __init__(self, session: Session) -> None:
        self._session, self._claims = session, ClaimsApi(session)

    def build(
        self, spec: DomainSpec, others: Others = NOBODY, template: Document | None = None, *, nccl: bool = False
    ) -> Built:
        """Return the domain. `others`: what other domains have. `template`: an existing domain, to be changed. `nccl`:
        whether its PCI is one that NCCL's topology can describe. Raises BadSpec, BadDocument, UnknownDevice,
        NoCapacity, ClaimConflict, HostError."""
        edits = template is not None
        template = template or read_template(spec.template)
        own = [subject_of(name) for name in devices_named(template.root)]
        if edits and not spec.sources:
            spec = replace(spec, claim=_claim_named(template, others))
        _refuse_unclear(spec, edits=edits)
        claim = self._claims.claim(spec.claim) if spec.claim else None
        spec = self._completed(spec, template, claim)
        processor = InventoryApi(self._session).processor()
        security = template.root.find("launchSecurity")
        weaker: tuple[Choice, ...] = ()
        if security is not None:
            refuse_elsewhere(security.get("type", ""), processor)
            spec, weaker = without_hugepages(spec)
        placing = Placing(self._session, spec, claim, others, own, realtime=is_realtime(template.root))
        placement, host_capacity = placing.placed()
        capacity = without_own_usage(host_capacity, others)
        used = relevant_nodes(spec.nodes, placement.devices, capacity) if spec.nodes else {}
        unused = [
            Choice(f"--node {address}={node}", "not used", "other devices were chosen", weaker=_NOT_GIVEN)
            for address, node in spec.nodes.items()
            if address not in used
        ]
        spec = replace(spec, nodes=used)
        withheld = withheld_in(template.root)
        devices = devices_of(
            [name for name in self._with_companions(placement.devices, capacity) if name not in withheld],
            capacity.inventory,
            capacity.parents,
            spec.nodes,
            mdev_display=_shows_display(spec, template) and not _has_display(template),
            managed=self._with_companions(_managed(template, capacity.inventory), capacity),
            roms=spec.roms,
        )
        refuse_untyped(capacity.inventory.by_address[function] for function in placement.functions)
        _refuse_no_display(spec, devices, template)
        if security is not None:
            refuse_several(devices)
        host = Host(capacity, processor, self._free_memory(spec, capacity, others), others)
        layout = lay_out(spec, devices, placement.cpus, host, placement.why, read_topology(template), nccl=nccl)
        document = composed(template, spec, layout, edits=edits)
        images = NOBODY.images if edits else others.images
        unread = refuse_shared_images(self._session.kernel, Domain(document), images)
        kinds = read_core_kinds(self._session.kernel, layout.pins.values())
        notes = reported(document, layout, withheld, kinds, unread)
        layout = layout._replace(choices=(*layout.choices, *weaker, *unused, *notes))
        return Built(spec, layout, document, capacity.inventory, processor)

    def _completed(self, spec: DomainSpec, template: Document, claim: Claim | None) -> DomainSpec:
        """Return the spec with what the template or the claim has. Raises BadSpec, ClaimConflict."""
        if spec.smt is Smt.AUTO:
            spec = replace(spec, smt=Smt.ISOLATE if is_realtime(template.root) else Smt.TOGETHER)
        if claim:
            refuse_foreign_claim(claim, spec.name)
            cpus = spec.cpus or self._vcpus_of(claim, spec.smt)
            pages = sum(reserved.size * reserved.pages for reserved in claim.hugepages)
            spec = replace(spec, claim=claim.id, cpus=cpus, memory=spec.memory or pages)
        if not spec.cpus:
            text = template.root.findtext("vcpu", "1").strip()
            spec = replace(spec, cpus=int(text) if text.isdecimal() else 1)
        return _without_plugged(replace(spec, memory=spec.memory or _memory_of(template)), template)

    def _free_memory(self, spec: DomainSpec, capacity: Capacity, others: Others) -> Mapping[int, int]:
        """Return the bytes free on each node. Raises NoCapacity if Policy.PREFERRED wants more than the host has."""
        nodes = [node.id for node in capacity.inventory.numa_nodes]
        total = read_all_memory(self._session.kernel, nodes) if spec.policy is Policy.PREFERRED else None
        if total is not None and spec.memory > total:
            what = f"the host has {total >> 20} MiB of memory in all, and {spec.memory >> 20} MiB are asked for"
            raise NoCapacity(what, hint="ask for less with --memory")
        return free_without_own_usage(read_free_memory(self._session.kernel, nodes), others)

    def _vcpus_of(self, claim: Claim, smt: Smt) -> int:
        if smt is Smt.TOGETHER or not claim.cpus:
            return len(claim.cpus)
        return max(1, len(claim.cpus) // widest_core(self._claims.capacity().topology))

    def _with_companions(self, subjects: Sequence[Subject], capacity: Capacity) -> Sequence[Subject]:
        scope = scope_of(capacity.inventory, [subject for subject in subjects if isinstance(subject, PciAddress)])
        mediated = [subject for subject in subjects if isinstance(subject, Uuid)]
        return [*scope.asked, *scope.own, *scope.foreign, *mediated]


def _claim_named(template: Document, others: Others) -> str:
    """Return the claim that a domain names, if it is its own: a clone names its original's."""
    mark = template.root.find(f"metadata/{MARK}")
    named = "" if mark is None else mark.get("id", "")
    return named if named in others.own else ""


def _refuse_unclear(spec: DomainSpec, *, edits: bool) -> None:
    if not (spec.is_clear or (edits and not spec.sources)):
        what = "--claim excludes the others" if spec.sources else "one of them is needed"
        hint = "use --claim ID, --gpus N, --device DEVICE or --vgpu TYPE"
        raise BadSpec(f"--claim, --gpus, --device, --vgpu: {what}", hint=hint)


def _without_plugged(spec: DomainSpec, template: Document) -> DomainSpec:
    """Return the spec with the memory of the cells: what memory devices have is not theirs."""
    more = plugged(template.root) >> 20 << 20
    if more and spec.memory <= more:
        what = f"{spec.memory >> 20} MiB of memory leave none for its NUMA nodes"
        hint = "say a larger --memory, which counts both"
        raise BadSpec(f"{what}: its memory devices have {more >> 20} MiB", hint=hint)
    return replace(spec, memory=spec.memory - more)


def _shows_display(spec: DomainSpec, template: Document) -> bool:
    has_graphics = template.root.find("devices/graphics") is not None
    if spec.display and not has_graphics:
        hint = "take a --template with <graphics>, such as vgpu-desktop"
        raise BadSpec(f"--display: the template {spec.template} has no graphics to show it on", hint=hint)
    return has_graphics if spec.display is None else spec.display


def _has_display(template: Document) -> bool:
    """Whether a device of it shows the display already: only one can."""
    return template.root.find("devices/hostdev[@display='on']") is not None


def _refuse_no_display(spec: DomainSpec, devices: Sequence[Device], template: Document) -> None:
    if spec.display and not (_has_display(template) or any(device.mdev_display for device in devices)):
        hint = "name a mediated device with --device, or leave --display out"
        raise BadSpec("--display: the domain gets no mediated device, which alone can show a display", hint=hint)


def _managed(template: Document, inventory: Inventory) -> Sequence[PciAddress]:
    """Return the functions of a domain that libvirt binds itself: what travels with them, libvirt has to bind too."""
    named = (subject_of(name) for name in managed_devices_of(template.root))
    return [name for name in named if isinstance(name, PciAddress) and name in inventory.by_address]


def _memory_of(template: Document) -> int:
    """Return the template's memory in bytes, in whole MiB."""
    memory = template.root.find("memory")
    text = "" if memory is None else f"{(memory.text or '').strip()}{memory.get('unit', 'KiB')}"
    try:
        return max(1, parse_size(text) >> 20) << 20
    except BadSpec:
        raise BadSpec(f"the template's memory is not understood: {text[:40]!r}", hint="say --memory SIZE") from None
