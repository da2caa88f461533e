"""Rules about virtual CPUs: their number, topology, the CPU model and its cache. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.domain.check.rules.rule import Fault, refused_before, repeats
from vfioctl.domain.document.architecture import ONLY_X86, SETTINGS_ONLY_X86
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, cpuset, is_on, number, text_in

_WITHOUT_EIM, _ADDS_EIM, _ADDS_XTSUP = 255, (10, 10), (12, 2)
"""The most vCPUs without extended interrupt mode. The libvirt that adds a vIOMMU with it, or turns it on; and the one
that turns on what AMD's has instead. Source: libvirt's NEWS.rst."""
_LEVELS = ("sockets", "dies", "clusters", "cores", "threads")
_LEAST_BITS, _MOST_BITS = 32, 52
_WITHOUT_BITS = (9, 2)
"""Not in libvirt's NEWS.rst; 9.0 refuses it."""


def vcpu_count(domain: Domain) -> Iterator[Fault]:
    element = domain.one("vcpu")
    if element is None:
        return
    if domain.vcpus is None:
        yield Fault(element, f"'{text_in(element)[:40]}' is no number of vCPUs", "a whole number")
    elif domain.vcpus == 0:
        yield Fault(element, "the domain has no vCPU", "at least 1")
    current = element.get("current")
    if current is not None and number(current) is None:
        yield Fault(element, f"current='{current[:40]}' is no number", "a whole number")
    elif current is not None and domain.vcpus is not None and (number(current) or 0) > domain.vcpus:
        yield Fault(element, f"{current} of {domain.vcpus} vCPUs are on at the start", "at most as many as there are")
    elif current is not None and number(current) == 0:
        yield Fault(element, "no vCPU is on at the start", "current= must be at least 1")


def vcpu_each(domain: Domain) -> Iterator[Fault]:
    """Which vCPUs are on at the start, if the document says it of each."""
    for element in domain.all("vcpus/vcpu"):
        vcpu = number(element.get("id"))
        if vcpu is None or (domain.vcpus is not None and vcpu >= domain.vcpus):
            yield Fault(element, f"there is no vCPU {(element.get('id') or '')[:40]}".rstrip(), "an id below <vcpu>")
        if element.get("enabled") == "no" and element.get("hotpluggable") == "no":
            yield Fault(element, "the vCPU is off, and cannot be plugged in", "enabled='yes', or hotpluggable='yes'")


def cpu_model(domain: Domain) -> Iterator[Fault]:
    """Features that are named twice, and attributes that the mode does not have."""
    for feature, name, _ in repeats((feature, feature.get("name", "")) for feature in domain.all("cpu/feature")):
        yield Fault(feature, f"the feature {name[:40]} is named twice", "keep one of them")
    cpu = domain.at("cpu")
    if cpu.get("migratable") and cpu.get("mode") not in ("host-passthrough", "maximum"):
        reason = f"migratable= with mode='{cpu.get('mode', 'custom')[:40]}'"
        yield Fault(cpu, reason, "remove it: only host-passthrough and maximum have it")


def vcpu_cpuset(domain: Domain) -> Iterator[Fault]:
    element = domain.one("vcpu")
    text = attribute(element, "cpuset")
    if element is not None and text is not None and not cpuset(text) and element.get("placement") != "auto":
        yield Fault(element, f"cpuset='{text[:40]}' names no CPUs", "such as 0-3,8")


def vcpu_many(domain: Domain) -> Iterator[Fault]:
    if not domain.is_x86 or domain.vcpus is None or domain.vcpus <= _WITHOUT_EIM:
        return
    element, remedy = domain.at("vcpu"), "an Intel vIOMMU with <driver intremap='on' eim='on'/>, on a q35 machine"
    if not domain.is_q35:
        yield Fault(element, f"more than {_WITHOUT_EIM} vCPUs need the machine q35", remedy)
    elif "off" in (modes := [driver.get("eim") for driver in domain.all("devices/iommu/driver")]):
        yield Fault(element, f"more than {_WITHOUT_EIM} vCPUs need extended interrupt mode", remedy)
    elif "on" not in modes:
        since = _ADDS_XTSUP if domain.one("devices/iommu[@model='amd']") is not None else _ADDS_EIM
        reason = f"more than {_WITHOUT_EIM} vCPUs: libvirt before {{}} needs a vIOMMU with eim='on'"
        yield from refused_before(domain, since, element, reason, remedy)


def cpu_topology(domain: Domain) -> Iterator[Fault]:
    element = domain.one("cpu/topology")
    if element is None:
        return
    product = 1
    for name in _LEVELS:
        text = element.get(name)
        value = number(text)
        if text is None and name in ("sockets", "cores", "threads"):
            yield Fault(element, f"the topology has no {name}=", "sockets, cores and threads are needed")
            return
        if text is not None and not value:
            yield Fault(element, f"{name}='{text[:40]}' is no number above 0", "a whole number")
            return
        product *= value or 1
        if name == "dies" and value and value > 1 and domain.arch and not domain.is_x86:
            yield Fault(element, f"dies='{value}', and QEMU has dies for x86 only", "dies='1', and more cores")
    if domain.vcpus is not None and product != domain.vcpus:
        reason = f"the topology has {product} CPUs, and <vcpu> says {domain.vcpus}"
        yield Fault(element, reason, "make sockets x dies x clusters x cores x threads equal to <vcpu>")


def cpu_cache(domain: Domain) -> Iterator[Fault]:
    element = domain.one("cpu/cache")
    if element is None:
        return
    mode, level, cpu = element.get("mode"), element.get("level"), domain.at("cpu").get("mode", "custom")
    if mode == "emulate" and level != "3":
        yield Fault(element, "mode='emulate' needs level='3'", "level='3', or mode='passthrough'")
    elif mode in ("passthrough", "disable") and level is not None:
        yield Fault(element, f"mode='{mode}' takes no level", "remove level=")
    elif mode == "passthrough" and cpu not in ("host-passthrough", "maximum"):
        yield Fault(element, f"mode='passthrough' with <cpu mode='{cpu[:40]}'>", "<cpu mode='host-passthrough'>")


def cpu_address_bits(domain: Domain) -> Iterator[Fault]:
    element = domain.one("cpu/maxphysaddr")
    if element is None:
        return
    mode, bits, limit = element.get("mode"), element.get("bits"), element.get("limit")
    if domain.arch and not domain.is_x86:
        yield Fault(element, f"{domain.arch} has no maxphysaddr", "remove it")
    if mode == "passthrough" and bits is not None:
        yield Fault(element, "mode='passthrough' takes no bits=", "limit=, or mode='emulate'")
    if mode == "emulate" and limit is not None:
        yield Fault(element, "mode='emulate' takes no limit=", "bits=, or mode='passthrough'")
    if mode == "emulate" and bits is None:
        reason = "mode='emulate' without bits=, which libvirt before {} refuses"
        yield from refused_before(domain, _WITHOUT_BITS, element, reason, "bits='46' or so")
    for name, text in (("bits", bits), ("limit", limit)):
        value = number(text)
        if text is not None and (value is None or not _LEAST_BITS <= value <= _MOST_BITS):
            yield Fault(element, f"{name}='{text[:40]}' is no width of addresses", f"{_LEAST_BITS} to {_MOST_BITS}")


def cpu_emulated(domain: Domain) -> Iterator[Fault]:
    if domain.root.get("type") == "qemu" and attribute(domain.one("cpu"), "mode") == "host-passthrough":
        yield Fault(
            domain.at("cpu"), "host-passthrough needs KVM, and the domain's type is qemu", "<domain type='kvm'>"
        )


def cpu_architecture(domain: Domain) -> Iterator[Fault]:
    for path in (*ONLY_X86, *SETTINGS_ONLY_X86) if domain.arch and not domain.is_x86 else ():
        for element in domain.all(path):
            yield Fault(element, f"{domain.arch[:40]} has no <{element.tag}>", "remove it: only x86 has it")


def hyperv_vendor_id(domain: Domain) -> Iterator[Fault]:
    element = domain.one("features/hyperv/vendor_id")
    if element is None or not is_on(element.get("state")):
        return
    value = element.get("value")
    if value is None:
        yield Fault(element, "the vendor id has no value", "value= with at most 12 characters")
    elif len(value) > 12:
        yield Fault(element, f"the vendor id has {len(value)} characters", "at most 12")
    elif "," in value:
        yield Fault(element, "the vendor id has a comma", "leave it out")


_HYPERV_NEEDS = {
    "synic": ("vpindex",),
    "stimer": ("synic", "hypervclock"),
    "tlbflush": ("vpindex",),
    "ipi": ("vpindex",),
    "evmcs": ("vapic",),
}
"""What QEMU does not start without: kvm_hyperv_properties in its target/i386/kvm/kvm.c. hypervclock is a timer."""


def hyperv_needs(domain: Domain) -> Iterator[Fault]:
    features = domain.one("features/hyperv")
    if features is None or features.get("mode") == "passthrough":
        return
    present = {feature.tag for feature in features if is_on(feature.get("state"))}
    clock = domain.one("clock/timer[@name='hypervclock']")
    if clock is not None and clock.get("present") != "no":
        present.add("hypervclock")
    for feature in features:
        missing = [name for name in _HYPERV_NEEDS.get(feature.tag, ()) if name not in present]
        if feature.tag in present and missing:
            remedy = ", ".join("the timer hypervclock" if name == "hypervclock" else f"<{name}/>" for name in missing)
            yield Fault(feature, f"{feature.tag} needs {' and '.join(missing)}: QEMU does not start", remedy)
