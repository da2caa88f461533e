"""Rules about confidential guests, and firmware. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.domain.check.rules.rule import Fault, more_than_one, warning
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, scaled, text_in
from vfioctl.inventory.model.values import any_number

_WITH_DEVICES = {
    "sev-snp": (
        "QEMU 9.1 gives a guest with sev-snp no devices of the host",
        "QEMU 9.2 or later: 9.1 fails with 'Cannot set discarding of RAM broken'",
    ),
    "tdx": ("devices of the host with tdx need QEMU 10.1", "QEMU 10.1 or later, the first one with TDX"),
}
_TSEG_UNIT = 1 << 20


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
        policy = element.find("policy")
        if policy is None:
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
