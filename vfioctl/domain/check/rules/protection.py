"""Rules about what protects memory and start: a vIOMMU, confidential guests, firmware. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.domain.check.rules.rule import Fault, more_than_one, warning, with_child
from vfioctl.domain.document.needs import locks_for_each
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, is_on, number, scaled, text_in
from vfioctl.domain.model.versions import WITH_DEVICES, version_text
from vfioctl.inventory.model.values import any_number

_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
_WIDTHS = (39, 48, 57)
_INTEL_ONLY = ("intremap", "caching_mode", "eim", "iotlb", "aw_bits", "dma_translation")
_SNP, _TDX = (f"QEMU {version_text(WITH_DEVICES[kind])}" for kind in ("sev-snp", "tdx"))
_WITH_DEVICES = {
    "sev-snp": (
        "QEMU 9.1 gives a guest with sev-snp no devices of the host",
        f"{_SNP} or later: 9.1 fails with 'Cannot set discarding of RAM broken'",
    ),
    "tdx": (f"devices of the host with tdx need {_TDX}", f"{_TDX} or later, the first one with TDX"),
}
_TSEG_UNIT = 1 << 20


def iommu_model(domain: Domain) -> Iterator[Fault]:
    elements = domain.all("devices/iommu")
    for extra in elements[1:]:
        if extra.get("model") != "smmuv3":  # of these newer libvirts take several, each for a bus
            yield Fault(extra, "there are two <iommu>", "keep one of them")
    for element in elements if domain.machine else ():
        model, has_no = element.get("model"), f"{domain.machine[:40]} has no"
        if model in ("intel", "amd") and not domain.is_q35:
            yield Fault(element, f"{has_no} {model} IOMMU", "the machine q35")
        elif model == "smmuv3" and not domain.is_arm_virt:
            yield Fault(element, f"{has_no} SMMUv3", "the machine virt on Arm")
        elif model == "virtio" and not (domain.is_q35 or domain.is_arm_virt):
            yield Fault(element, f"{has_no} virtio IOMMU", "the machine q35, or virt on Arm")


def iommu_address(domain: Domain) -> Iterator[Fault]:
    for element, where in with_child(domain.all("devices/iommu"), "address"):
        model = element.get("model")
        if model in ("intel", "smmuv3"):
            yield Fault(where, f"a vIOMMU of {model} has no address", "remove it")
        elif model == "virtio" and where.get("type") != "pci":
            yield Fault(where, "a virtio IOMMU has a PCI address", "type='pci', or leave it to libvirt")
        elif model == "virtio" and domain.address_by_device.get(id(element), (0, 0))[1]:
            yield Fault(where, "a virtio IOMMU must be on bus 0", "bus='0x00'")


def iommu_acpi(domain: Domain) -> Iterator[Fault]:
    for element in domain.all("devices/iommu[@model='virtio']"):
        if not domain.has_feature("acpi"):
            yield Fault(element, "a virtio IOMMU needs ACPI", "<features><acpi/></features>")


def iommu_option(domain: Domain) -> Iterator[Fault]:
    for element, driver in with_child(domain.all("devices/iommu"), "driver"):
        model = element.get("model")
        names = [name for name in _INTEL_ONLY if driver.get(name) is not None]
        if names and model in ("smmuv3", "virtio"):
            yield Fault(driver, f"a vIOMMU of {model} has no {names[0]}=", "remove it")
        width = driver.get("aw_bits")
        if width is not None and number(width) not in _WIDTHS:
            yield Fault(driver, f"aw_bits='{width[:40]}' is no width", "39, 48 or 57")


def iommu_interrupts(domain: Domain) -> Iterator[Fault]:
    """Interrupt remapping needs the I/O APIC in QEMU, and extended interrupt mode needs remapping."""
    ioapic = domain.one("features/ioapic")
    in_qemu = ioapic is not None and ioapic.get("driver") == "qemu"
    for driver in domain.all("devices/iommu/driver"):
        if is_on(driver.get("intremap")) and not in_qemu:
            remedy = "<features><ioapic driver='qemu'/></features>"
            yield Fault(driver, "intremap='on' needs the I/O APIC in QEMU", remedy)
        if is_on(driver.get("eim")) and not is_on(driver.get("intremap")):
            yield Fault(driver, "eim='on' needs intremap='on'", "intremap='on'")
    if in_qemu and ioapic is not None and not domain.all("devices/iommu"):
        yield warning(ioapic, "the I/O APIC in QEMU makes interrupts slower, and no vIOMMU needs it", "remove it")


def iommu_caching(domain: Domain) -> Iterator[Fault]:
    """QEMU refuses VFIO devices behind an Intel vIOMMU that does not report changed mappings."""
    has_devices = bool(domain.passed_through or domain.hostdevs_of("mdev"))
    for element in domain.all("devices/iommu[@model='intel']"):
        if has_devices and not is_on(attribute(element.find("driver"), "caching_mode")):
            remedy = "<driver intremap='on' caching_mode='on'/> in <iommu>"
            yield Fault(element, "devices of the host behind it need caching_mode='on'", remedy)


def iommu_locked(domain: Domain) -> Iterator[Fault]:
    """Each device behind a vIOMMU pins all memory for itself."""
    many = len(domain.passed_through)
    if many > 1 and locks_for_each(domain):
        reason = f"each of {many} devices counts all memory as locked: {many} times the guest's memory"
        yield warning(domain.at("devices/iommu"), reason, "no vIOMMU, or iommufd (libvirt 12.1), which counts it once")


def iommu_hidden(domain: Domain) -> Iterator[Fault]:
    """A vIOMMU that libvirt does not know of: it locks too little memory for the devices behind it."""
    for element in domain.all(f"{{{_QEMU}}}commandline/{{{_QEMU}}}arg"):
        value = element.get("value", "")
        if domain.passed_through and "iommu" in value and "iommufd" not in value:
            reason = "a vIOMMU that libvirt does not see, so it locks too little memory for the devices"
            yield warning(element, reason, "<iommu model='intel'/> in <devices>, or a <hard_limit> of its own")


def confidential_type(domain: Domain) -> Iterator[Fault]:
    for element in domain.all("launchSecurity[@type='s390-pv']"):
        if domain.is_x86:
            yield Fault(element, "s390-pv exists on s390 only", "sev-snp or tdx")
    yield from more_than_one(domain, "launchSecurity", remedy="keep one of them: libvirt reads the first")


def confidential_policy(domain: Domain) -> Iterator[Fault]:
    """SEV and SNP have a policy, and numbers are numbers."""
    for element in domain.all("launchSecurity"):
        if element.get("type") not in ("sev", "sev-snp"):
            continue
        if element.find("policy") is None:
            yield Fault(element, "there is no <policy>", "<policy>0x30000</policy> for SEV-SNP, 0x0007 for SEV")
        for name in ("policy", "cbitpos", "reducedPhysBits"):
            value = element.find(name)
            if value is not None and any_number(text_in(value)) is None:
                yield Fault(value, f"'{text_in(value)[:40]}' is no number", "decimal, or 0x hexadecimal")


def confidential_guest(domain: Domain) -> Iterator[Fault]:
    """What QEMU refuses with SEV-SNP and TDX."""
    element = domain.one("launchSecurity")
    if element is None or element.get("type") not in ("sev-snp", "tdx"):
        return
    kind = str(element.get("type"))
    if domain.machine and domain.is_i440fx:
        yield warning(element, f"{kind} is tried on q35 only", "the machine q35")
    smm = domain.one("features/smm")
    if smm is not None and smm.get("state", "on") == "on":
        yield Fault(smm, f"{kind} has no SMM", "<smm state='off'/>, and firmware without Secure Boot by SMM")
    if domain.root.get("type") == "qemu":
        yield Fault(element, f"{kind} needs KVM", "<domain type='kvm'>")
    if domain.passed_through:
        yield warning(element, *_WITH_DEVICES[kind])
    if kind == "sev-snp" and domain.one("os/loader[@type='pflash']") is not None:
        remedy = "<loader type='rom'>, or leave the loader to libvirt"
        yield warning(domain.at("os/loader"), "SEV-SNP starts from firmware without pflash", remedy)


def firmware_acpi(domain: Domain) -> Iterator[Fault]:
    is_efi = domain.at("os").get("firmware") == "efi" or attribute(domain.one("os/loader"), "type") == "pflash"
    if domain.one("os") is not None and is_efi and domain.is_x86 and not domain.has_feature("acpi"):
        yield Fault(domain.at("os"), "UEFI needs ACPI", "<features><acpi/></features>")


def firmware_tseg(domain: Domain) -> Iterator[Fault]:
    element = domain.one("features/smm/tseg")
    if element is None:
        return
    size = scaled(text_in(element), element.get("unit"), "MiB")
    if domain.machine and not domain.is_q35:
        yield Fault(element, f"{domain.machine[:40]} has no TSEG", "the machine q35, or remove it")
    if size is None or size % _TSEG_UNIT:
        yield Fault(element, "the size of TSEG is no whole number of MiB", "such as <tseg unit='MiB'>48</tseg>")


def firmware_secure_boot(domain: Domain) -> Iterator[Fault]:
    """libvirt chooses a secure build if nothing is said; keys need Secure Boot, and it needs SMM."""
    features = {feature.get("name"): feature.get("enabled") for feature in domain.all("os/firmware/feature")}
    if features.get("enrolled-keys") == "yes" and features.get("secure-boot") == "no":
        yield Fault(domain.at("os/firmware"), "enrolled-keys needs secure-boot", "secure-boot enabled='yes'")
    smm = domain.one("features/smm[@state='off']")
    is_secure = features.get("secure-boot") == "yes" or domain.one("os/loader[@secure='yes']") is not None
    if smm is not None and domain.is_x86 and is_secure:
        yield Fault(smm, "Secure Boot needs SMM", "<smm state='on'/>, or firmware without Secure Boot")
    is_said = "secure-boot" in features or domain.one("os/loader") is not None
    if domain.one("os[@firmware='efi']") is not None and domain.passed_through and not is_said:
        remedy = "<firmware><feature enabled='no' name='secure-boot'/></firmware>"
        yield warning(domain.at("os"), "libvirt chooses whether Secure Boot is on, and may choose it", remedy)
