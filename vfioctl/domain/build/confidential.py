"""What a guest needs whose memory the host cannot read, and what it cannot have. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vfioctl.domain.build.layout.memory import SIZES
from vfioctl.domain.model.layout import Choice, Device
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.machine import Processor

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
