"""Rules about names that libvirt does not know: without validation it drops them without a word. May not do input or
output. The names are those of libvirt's schema, for the parts that the other rules look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.rule import Fault, warning
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import is_element
from vfioctl.domain.model.versions import SINCE, VALUES_SINCE, version_text

_LONGEST = 40


class _Known(NamedTuple):
    children: str = ""
    attributes: str = ""


_ADDRESS = _Known(
    "zpci",
    "type domain bus slot function multifunction controller target unit port cssid ssid devno reg iobase irq base",
)
_KNOWN: Mapping[str, _Known] = {
    ".": _Known(
        "name uuid hwuuid title description metadata genid bootloader bootloader_args os memory maxMemory "
        "currentMemory memoryBacking memtune blkiotune vcpu vcpus cputune numatune iothreads iothreadids "
        "defaultiothread cpu features clock on_poweroff on_reboot on_crash on_lockfailure pm perf "
        "resource devices seclabel keywrap launchSecurity sysinfo idmap throttlegroups iommufd",
        "type id",
    ),
    "memory": _Known("", "unit dumpCore"),
    "memtune": _Known("hard_limit soft_limit swap_hard_limit min_guarantee"),
    "memoryBacking": _Known("hugepages nosharepages locked source access allocation discard"),
    "memoryBacking/hugepages": _Known("page"),
    "memoryBacking/hugepages/page": _Known("", "size unit nodeset"),
    "memoryBacking/allocation": _Known("", "mode threads"),
    "numatune": _Known("memory memnode"),
    "numatune/memory": _Known("", "mode nodeset placement"),
    "numatune/memnode": _Known("", "cellid mode nodeset"),
    "vcpu": _Known("", "placement cpuset current"),
    "cputune": _Known(
        "shares period quota global_period global_quota emulator_period emulator_quota iothread_period iothread_quota "
        "vcpupin emulatorpin iothreadpin vcpusched iothreadsched emulatorsched cachetune memorytune "
        "energytune"
    ),
    "cputune/vcpupin": _Known("", "vcpu cpuset"),
    "cputune/emulatorpin": _Known("", "cpuset"),
    "cputune/iothreadpin": _Known("", "iothread cpuset"),
    "cputune/vcpusched": _Known("", "vcpus scheduler priority"),
    "cputune/iothreadsched": _Known("", "iothreads scheduler priority"),
    "cputune/emulatorsched": _Known("", "scheduler priority"),
    "iothreadids": _Known("iothread"),
    "iothreadids/iothread": _Known("poll", "id thread_pool_min thread_pool_max"),
    "features": _Known(
        "pae apic acpi hap hyperv viridian kvm xen privnet pvspinlock capabilities pmu vmport gic smm ioapic hpt "
        "vmcoreinfo htm nested-hv msrs ccf-assist cfpc sbbc ibs tcg async-teardown ras ps2 aia"
    ),
    "features/kvm": _Known("hidden hint-dedicated poll-control pv-ipi dirty-ring"),
    "features/hyperv": _Known(
        "relaxed vapic spinlocks vpindex runtime synic stimer reset vendor_id frequencies reenlightenment tlbflush "
        "ipi evmcs avic emsr_bitmap xmm_input",
        "mode",
    ),
    "cpu": _Known(
        "model vendor topology cache feature numa maxphysaddr", "mode match check migratable deprecated_features"
    ),
    "cpu/maxphysaddr": _Known("", "mode bits limit"),
    "cpu/topology": _Known("", "sockets dies clusters cores threads"),
    "cpu/numa": _Known("cell interconnects"),
    "cpu/numa/cell": _Known("distances cache", "id cpus memory unit memAccess discard"),
    "cpu/numa/cell/distances": _Known("sibling"),
    "cpu/numa/cell/distances/sibling": _Known("", "id value"),
    "launchSecurity": _Known(
        "cbitpos reducedPhysBits policy handle dhCert session guestVisibleWorkarounds idBlock idAuth hostData "
        "mrConfigId mrOwner mrOwnerConfig quoteGenerationService",
        "type kernelHashes authorKey vcek",
    ),
    "devices": _Known(
        "emulator disk controller lease filesystem interface input sound audio hostdev graphics video console "
        "parallel serial channel smartcard hub redirdev redirfilter rng tpm shmem memory crypto watchdog memballoon "
        "nvram panic iommu vsock pstore"
    ),
    "devices/hostdev": _Known(
        "source driver address alias boot rom teaming acpi readonly shareable ip route",
        "mode type managed model display ramfb rawio sgio",
    ),
    "devices/hostdev/source": _Known(
        "address vendor product adapter host auth initiator block char interface ip",
        "startupPolicy guestReset missing protocol name wwpn writeFiltering",
    ),
    "devices/hostdev/source/address": _Known("", "type domain bus slot function uuid device port target unit"),
    "devices/hostdev/address": _ADDRESS,
    "devices/controller/address": _ADDRESS,
    "devices/hostdev/driver": _Known("", "name model iommufd"),
    "devices/hostdev/rom": _Known("", "bar file enabled"),
    "devices/hostdev/acpi": _Known("", "index nodeset"),
    "devices/controller": _Known(
        "address alias driver master model pcihole64 target acpi",
        "type index model ports vectors maxGrantFrames maxEventChannels",
    ),
    "devices/controller/target": _Known("node", "busNr chassis chassisNr hotplug index memReserve port"),
    "devices/iommu": _Known("driver acpi address alias", "model"),
    "devices/iommu/driver": _Known(
        "", "intremap caching_mode eim iotlb aw_bits dma_translation passthrough xtsup pciBus accel"
    ),
}
_REFUSED = ("features", "features/kvm", "features/hyperv")
"""Where libvirt refuses what it does not know. Newer ones know more, so what is like no known name is a warning."""


def name_unknown(domain: Domain) -> Iterator[Fault]:
    for path, known in _KNOWN.items():
        children, attributes = known.children.split(), known.attributes.split()
        for element in [domain.root] if path == "." else domain.all(path):
            for child in element:
                name = child.tag
                if children and is_element(child) and not name.startswith("{") and name not in children:
                    yield _unknown(child, f"<{name[:_LONGEST]}>", name, children, path)
            for name in element.attrib:
                if attributes and not name.startswith("{") and name not in attributes:
                    yield _unknown(element, f"{name[:_LONGEST]}=", name, attributes, path)


def _unknown(element: Element, shown: str, name: str, known: list[str], path: str) -> Fault:
    """An error if it looks like a known name: then its author means that one."""
    done = "refuses the document" if path in _REFUSED else "drops it without a word"
    reason = f"libvirt knows no {shown} here, and {done}"
    alike = get_close_matches(name, known, 1, 0.8) if len(name) < _LONGEST else []
    if alike:
        return Fault(element, reason, f"{alike[0]}, if that is meant")
    return warning(element, reason, "remove it, or look for its name in libvirt's documentation")


def name_too_new(domain: Domain) -> Iterator[Fault]:
    """Names that this libvirt does not know yet. Nothing is said where its version is not known."""
    if domain.version is None:
        return
    for (path, name), since in SINCE.items():
        for element in [domain.root] if path == "." else domain.all(path):
            child = element.find(name)
            if (name in element.attrib or child is not None) and domain.version < since:
                does = f"refuses {name}" if path in _REFUSED else f"drops {name} without a word"
                reason = f"libvirt {version_text(domain.version)} {does}"
                yield Fault(element if child is None else child, reason, f"libvirt {version_text(since)}, or remove it")
    for (path, name, value), since in VALUES_SINCE.items():
        for element in domain.all(path):
            if element.get(name) == value and domain.version < since:
                reason = f"libvirt {version_text(domain.version)} does not know {name}='{value}'"
                yield Fault(element, reason, f"libvirt {version_text(since)} or later")
