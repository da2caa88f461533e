"""What a confidential guest cannot have, and what works less well than a user may expect. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vfioctl.domain.build.layout.memory import SIZES
from vfioctl.domain.document.values import ballooned
from vfioctl.domain.document.xml import Document
from vfioctl.domain.model.layout import Choice, Device, Layout
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy
from vfioctl.errors import BadSpec, some_of
from vfioctl.inventory.model.machine import Processor
from vfioctl.units import exact_size, format_cpu_list


def reported(
    document: Document,
    layout: Layout,
    withheld: Sequence[str],
    kinds: Mapping[str, Sequence[int]],
    unread: Mapping[str, str],
) -> Iterator[Choice]:
    """Yield a choice for each. `withheld`: devices that the guest does not see. `kinds`: the CPUs by kind of core.
    `unread`: disk images without a known base, each with the reason."""
    root = document.root
    if withheld:  # they stay without a PCI address in the guest, as the XML asks for
        weaker = "the guest does not see them; remove their <address type='unassigned'/> to give them to it"
        yield Choice("devices withheld from the guest", some_of(withheld), "their address is unassigned", weaker=weaker)
    size = ballooned(root)
    if size and layout.expanders:
        weaker = f"{exact_size(size)}; the host cannot use the rest, because VFIO pins it all"
        yield Choice("memory that the guest starts with", exact_size(size), "<currentMemory> stays", weaker=weaker)
    is_shown = root.find("devices/hostdev[@display='on']") is not None
    has_no_video = root.find("devices/video/model[@type='none']") is not None
    if root.find("devices/graphics") is not None and has_no_video and not is_shown:
        weaker = "nothing is ever seen on the domain's <graphics>: no device of it shows a display there"
        yield Choice("display", "none", "only a mediated device can show one, with --display", weaker=weaker)
    has_efi = root.find("os[@firmware='efi']") is not None or root.find("os/loader") is not None
    if layout.is_x86 and layout.hole and not has_efi:
        weaker = "SeaBIOS may find no addresses for such large BARs: take a template with UEFI, such as compute-linux"
        yield Choice("firmware", "SeaBIOS", "the template asks for no other", weaker=weaker)
    if len(kinds) > 1:  # the guest takes them for alike
        named = "; ".join(f"CPUs {format_cpu_list(cpus)}: {kind}" for kind, cpus in kinds.items())
        weaker = "some vCPUs are slower, and the guest does not see which; a claim of CPUs of one kind avoids this"
        yield Choice("kinds of cores", named, "they are free, and near the devices", weaker=weaker)
    yield from (Choice("disk image", name, "its base is not known", weaker=why) for name, why in unread.items())
    if root.find("devices/iommu[@model='smmuv3']") is not None:  # which QEMU emulates alone (hw/arm/smmuv3.c)
        weaker = "QEMU refuses devices of the host behind it, unless a newer one has <driver accel='on'/> and iommufd"
        yield Choice("vIOMMU", "smmuv3", "as asked for", weaker=weaker)


_MADE_BY_INTEL = "GenuineIntel"
_OTHER = "take another --template, or build on a host that has it"


def refuse_elsewhere(kind: str, processor: Processor) -> None:
    """Raise BadSpec if a host's processor has no such encryption. `kind`: the type of libvirt's launchSecurity."""
    if not processor.is_x86:
        raise BadSpec(f"the template wants {kind}, which {processor.arch} processors do not have", hint=_OTHER)
    actual = f"this host's is {processor.vendor}" if processor.vendor else "who made this host's is not known"
    of_amd, of_intel = ("AMD", processor.is_amd), ("Intel", processor.vendor == _MADE_BY_INTEL)
    makers = {"sev": of_amd, "sev-es": of_amd, "sev-snp": of_amd, "tdx": of_intel}
    if kind in makers:
        vendor, is_theirs = makers[kind]
        if not is_theirs:
            raise BadSpec(f"the template wants {kind}, which only processors of {vendor} have: {actual}", hint=_OTHER)


def without_hugepages(spec: DomainSpec) -> tuple[DomainSpec, tuple[Choice, ...]]:
    """Return the spec with ordinary pages, and what is weaker than asked. Raises BadSpec for hugepages that must be."""
    asked = spec.hugepages in SIZES
    if asked and spec.policy is Policy.STRICT:
        what = "a confidential domain gets no hugepages: the kernel backs no encrypted memory with them"
        raise BadSpec(what, hint="leave --hugepages out, or build with --policy preferred")
    why = "the kernel backs no encrypted memory with hugepages"
    weaker = "the memory has ordinary pages, although hugepages were asked for"
    choices = (Choice("hugepages", "none", why, weaker=weaker),) if asked else ()
    return replace(spec, hugepages=PageSize.NONE), choices


def refuse_several(devices: Sequence[Device]) -> None:
    """Raise BadSpec for more than one GPU."""
    if sum(device.label.startswith("gpu") for device in devices) > 1:
        hint = "several GPUs need the vendor's mode for all of them, and NVSwitches, in one guest"
        raise BadSpec("a confidential domain gets one GPU", hint=hint)
