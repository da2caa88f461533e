"""Builds a domain on a host: chooses its devices and CPUs as a claim would get them, lays it out, writes its XML.

Reads the host, the ledger and libvirt, and may not write to any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.api import ClaimsApi
from vfioctl.domain.compose import composed
from vfioctl.domain.layout.cpus import needed
from vfioctl.domain.layout.devices import devices_of
from vfioctl.domain.layout.layout import Host, lay_out
from vfioctl.domain.model.others import NOBODY, Others
from vfioctl.domain.model.spec import PageSize, Policy
from vfioctl.domain.probe.memory import read_free_memory
from vfioctl.domain.templates import read_template
from vfioctl.domain.xml import text_of
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress, Uuid, parse_size

if TYPE_CHECKING:
    from vfioctl.claims.model.capacity import Capacity
    from vfioctl.claims.model.claim import Claim
    from vfioctl.claims.model.placement import Placement
    from vfioctl.domain.model.build import BuildDocument
    from vfioctl.domain.model.layout import Choice, Device, Layout
    from vfioctl.domain.model.spec import DomainSpec
    from vfioctl.domain.xml import Document
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.processor import Processor
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session

_NO_CPUS = 0


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
        """The topology for NCCL in the guest, as XML."""
        from vfioctl.domain.nccl import nccl_topology

        return nccl_topology(self.layout, self.inventory, self.processor)

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
                BuildDevice(
                    device=placed.device.subject,
                    alias=f"ua-{placed.device.label}",
                    numa_node=placed.device.node,
                    cell=expander.cell,
                )
                for expander in layout.expanders
                for port in expander.ports
                for placed in port.devices
            ),
            choices=tuple(
                BuildChoice(what=what, chosen=chosen, why=why, excluded=excluded, weaker=weaker)
                for what, chosen, why, excluded, weaker in layout.choices
            ),
            xml=self.xml,
        )


class Building:
    """Builds domains on one host."""

    def __init__(self, session: Session) -> None:
        self._session, self._claims = session, ClaimsApi(session)

    def build(self, spec: DomainSpec, others: Others = NOBODY, template: Document | None = None) -> Built:
        """Return the domain. `others`: what other domains have. `template`: in place of the one that the spec names.

        Raises BadSpec, BadDocument, UnknownDevice, NoCapacity, ClaimConflict, HostError.
        """
        _refuse_unclear(spec)
        template = template or read_template(spec.template)
        claim = self._claims.claim(spec.claim) if spec.claim else None
        if claim and not claim.is_live:
            raise BadSpec(f"claim {claim.id} is {claim.state}: it holds nothing", next_command="vfioctl claim list")
        spec = _filled_in(spec, template, claim)
        is_confidential = template.root.find("launchSecurity") is not None
        if is_confidential:
            spec = _confidential(spec)
        placement, capacity = self._placed(spec, claim, others)
        cpus = claim.cpus if claim and len(claim.cpus) >= spec.cpus else placement.cpus
        devices = devices_of(
            self._with_companions(placement.devices, capacity),
            capacity.inventory,
            capacity.parents,
            spec.nodes,
            mdev_display=template.root.find("devices/graphics") is not None,
        )
        if is_confidential:
            _refuse_several(devices)
        host = Host(
            capacity,
            InventoryApi(self._session).processor(),
            read_free_memory(self._session.kernel, [node.id for node in capacity.inventory.numa_nodes]),
            others,
        )
        layout = lay_out(spec, devices, cpus, host, placement.why)
        return Built(spec, layout, composed(template, spec, layout), capacity.inventory, host.processor)

    def _placed(self, spec: DomainSpec, claim: Claim | None, others: Others) -> tuple[Placement, Capacity]:
        """Return what a claim for the domain would get; a policy that prefers does without CPUs of its own."""
        try:
            placement, capacity = self._place(spec, claim, others, spec.cpus)
            cpus = needed(spec.cpus, spec.smt, capacity.topology)
            return (placement, capacity) if cpus == spec.cpus else self._place(spec, claim, others, cpus)
        except NoCapacity:
            if spec.policy is Policy.STRICT:
                raise
            return self._place(spec, claim, others, _NO_CPUS)

    def _place(self, spec: DomainSpec, claim: Claim | None, others: Others, cpus: int) -> tuple[Placement, Capacity]:
        from vfioctl.claims.model.owner import Owner
        from vfioctl.claims.model.request import ClaimRequest

        devices: Sequence[Subject] = ()
        if claim:
            devices = [each.subject for each in claim.devices if each.asked]
        elif spec.devices:
            devices = self._claims.devices_called(spec.devices)
        request = ClaimRequest(
            owner=claim.owner if claim else Owner(f"vm/{spec.name}"),
            devices=tuple(devices),
            gpus=spec.gpus,
            numa=spec.numa,
            model=spec.model,
            cpus=cpus,
        )
        but = claim.id if claim else ""
        held = {PciAddress(name): f"{who} has it" for name, who in others.devices.items() if ":" in name}
        return self._claims.previewing.place(
            request, but=but, pinned=others.cpus, nodes=spec.nodes, held=held if spec.gpus else {}
        )

    def _with_companions(self, subjects: Sequence[Subject], capacity: Capacity) -> Sequence[Subject]:
        """Return the devices with the functions that must travel with them."""
        functions = [each for each in subjects if isinstance(each, PciAddress)]
        scope = scope_of(capacity.inventory, functions)
        return [*scope.asked, *scope.own, *scope.foreign, *(each for each in subjects if isinstance(each, Uuid))]


def _refuse_unclear(spec: DomainSpec) -> None:
    given = [bool(spec.claim), bool(spec.gpus), bool(spec.devices)]
    if sum(given) != 1:
        what = "what the domain gets was not said" if not any(given) else "only one of them can be asked for"
        raise BadSpec(f"--claim, --gpus, --device: {what}", hint="say --claim ID, --gpus N or --device DEVICE")


def _filled_in(spec: DomainSpec, template: Document, claim: Claim | None) -> DomainSpec:
    """Return the spec with the template's numbers where it has none, and with the whole id of its claim."""
    given: dict[str, object] = {"claim": claim.id} if claim else {}
    if not spec.cpus:
        text = template.root.findtext("vcpu", "1").strip()
        given["cpus"] = len(claim.cpus) if claim and claim.cpus else int(text) if text.isdecimal() else 1
    if not spec.memory:
        given["memory"] = sum(each.size * each.pages for each in claim.hugepages) if claim else 0
        given["memory"] = given["memory"] or _memory_of(template)
    return spec.model_copy(update=given)


def _confidential(spec: DomainSpec) -> DomainSpec:
    """Return the spec of a guest with encrypted memory, which the kernel does not back with hugepages."""
    return spec.model_copy(update={"hugepages": PageSize.NONE})


def _refuse_several(devices: Sequence[Device]) -> None:
    if sum(device.label.startswith("gpu") for device in devices) > 1:
        hint = "several GPUs need the vendor's mode for all of them, and NVSwitches, in one guest"
        raise BadSpec("a confidential domain gets one GPU", hint=hint)


def _memory_of(template: Document) -> int:
    """Return the template's memory in bytes, in whole MiB."""
    memory = template.root.find("memory")
    text = "" if memory is None else f"{(memory.text or '').strip()}{memory.get('unit', 'KiB')}"
    try:
        return max(1, parse_size(text) >> 20) << 20
    except BadSpec:
        raise BadSpec(f"the template's memory is not understood: {text[:40]!r}", hint="say --memory SIZE") from None
