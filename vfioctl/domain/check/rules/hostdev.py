"""Rules about host devices: PCI functions, mediated devices, USB and SCSI devices. May not do input or output."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.rule import Fault, repeats, warning, with_child
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import address_of, attribute, is_element, is_on, is_uuid

_KINDS = ("pci", "usb", "scsi", "scsi_host", "mdev")
_TARGETS = {"pci": ("pci", "unassigned"), "scsi": ("drive",), "scsi_host": ("pci", "ccw"), "usb": ("usb",)}
"""The types of address in the guest that each kind may have."""


def hostdev_type(domain: Domain) -> Iterator[Fault]:
    for device in domain.hostdevs:
        if device.get("type") in _KINDS and device.find("source") is None:
            yield Fault(device, "the hostdev has no <source>", "say which device of the host it is")
    for device in domain.all("devices/hostdev[@mode='capabilities']"):
        yield Fault(device, "mode='capabilities' is for containers (LXC)", "mode='subsystem'")


def hostdev_source(domain: Domain) -> Iterator[Fault]:
    """A PCI device has a readable address of the host; that of an interface says what it is."""
    for device in domain.passed_through:
        where = device.find("source/address")
        if device.tag == "interface" and (where is None or where.get("type") not in _KINDS):
            if where is not None or device.find("source/vendor") is None:  # which a USB device may have instead
                remedy = "<address type='pci' domain='0x0000' bus='0x41' slot='0x00' .../>"
                yield Fault(device if where is None else where, "the interface's device has no type of address", remedy)
            continue
        for extra in device.findall("source/address")[1:]:
            yield Fault(extra, "the source has two addresses, and libvirt reads one", "a hostdev for each device")
        if where is None and device.find("source") is not None:
            yield Fault(device, "the source has no <address>", "<address domain='0x0000' bus='0x41' slot='0x00' .../>")
        elif where is not None and "bus" not in where.attrib and where.get("type", "pci") == "pci":
            yield Fault(where, "the address has no bus", "domain, bus, slot and function of the host's device")


def hostdev_address(domain: Domain) -> Iterator[Fault]:
    for hostdev, where in with_child(domain.hostdevs, "address"):
        allowed, kind = _TARGETS.get(hostdev.get("type", "")), where.get("type", "")
        if allowed and kind not in allowed:
            yield Fault(where, f"a {hostdev.get('type')} device has no {kind[:40]} address", " or ".join(allowed))


def hostdev_twice(domain: Domain) -> Iterator[Fault]:
    """The same device of the host twice."""
    for device, _, other in repeats((device, _device(device)) for device in domain.devices):
        reason = f"the same device as in {domain.document.path(other)}"
        yield Fault(device, reason, "a guest can have a device once: remove one of them")


def _device(element: Element) -> Hashable | None:
    source = element.find("source")
    kind = "pci" if element.tag == "interface" and element.get("type") == "hostdev" else element.get("type", "")
    if source is None or (element.tag != "hostdev" and kind != "pci"):
        return None
    where = source.find("address")
    if kind == "pci":
        address = address_of(where)
        return None if where is None or where.get("type", "pci") != "pci" or not address else ("pci", address)
    if kind == "mdev":
        uuid = "" if where is None else where.get("uuid", "").strip().lower().replace("-", "")
        return ("mdev", uuid) if uuid else None
    parts = (element for element in source.iter() if is_element(element))
    return (kind, *((part.tag, *sorted(part.items())) for part in parts if part.items()))


def hostdev_driver(domain: Domain) -> Iterator[Fault]:
    for _, driver in with_child(domain.passed_through, "driver"):
        if (name := driver.get("name")) in ("kvm", "xen"):
            yield Fault(driver, f"driver '{name}' no longer exists for QEMU", "name='vfio', or leave it out")
    for _, source in with_child(domain.passed_through, "source"):
        if source.get("writeFiltering") is not None:
            yield Fault(source, "QEMU has no writeFiltering", "remove it")


def hostdev_display(domain: Domain) -> Iterator[Fault]:
    graphics = any(device.tag == "graphics" for device in domain.devices)
    ramfbs = 0
    for hostdev in (*domain.hostdevs_of("pci"), *domain.hostdevs_of("mdev")):
        if hostdev.get("display") == "on" and not graphics:
            yield Fault(hostdev, "display='on', and the domain has no <graphics>", "add <graphics>, or display='off'")
        if is_on(hostdev.get("ramfb")):
            ramfbs += 1
            if ramfbs > 1:
                yield Fault(hostdev, "a second device has ramfb='on'", "only one device may have it")
            if hostdev.get("display") != "on":
                yield Fault(hostdev, "ramfb='on' without display='on'", "add display='on': QEMU refuses it without")


def hostdev_attribute(domain: Domain) -> Iterator[Fault]:
    for hostdev in domain.hostdevs:
        for name in ("rawio", "sgio"):
            if hostdev.get(name) is not None and hostdev.get("type") != "scsi":
                yield Fault(hostdev, f"{name}= is for type='scsi' only", "remove it")
        if hostdev.get("model") is not None and hostdev.get("type") not in ("mdev", "scsi_host"):
            yield Fault(hostdev, f"a {hostdev.get('type', '')[:40]} device has no model=", "remove it")
        if hostdev.get("type") == "scsi_host" and hostdev.find("boot") is not None:
            yield Fault(hostdev, "QEMU cannot boot from a vhost SCSI device", "remove <boot>")


def hostdev_drive(domain: Domain) -> Iterator[Fault]:
    """SCSI devices of the host share the addresses of disks."""
    for device, _, other in repeats((device, _drive(device)) for device in domain.devices):
        if "hostdev" in (device.tag, other.tag):
            reason = f"the address is also that of {domain.document.path(other)}"
            yield Fault(device, reason, "another unit= in its <address>")


def _drive(element: Element) -> tuple[str, ...] | None:
    """The address of a SCSI disk or device; that of a disk without one follows from its name, seven to a controller."""
    target, where = element.find("target"), element.find("address")
    is_disk = element.tag == "disk" and target is not None and target.get("bus") == "scsi"
    if where is not None and where.get("type") == "drive" and (is_disk or element.get("type") == "scsi"):
        return tuple(where.get(name, "0") for name in ("controller", "bus", "target", "unit"))
    name = "" if target is None else target.get("dev", "")
    if is_disk and where is None and len(name) == 3 and name.startswith("sd") and "a" <= name[2] <= "z":
        place = ord(name[2]) - ord("a")
        return (str(place // 7), "0", "0", str(place % 7))
    return None


def hostdev_interface(domain: Domain) -> Iterator[Fault]:
    for device, backend in with_child(domain.passed_through, "backend"):
        if device.tag == "interface" and backend.get("tap") is not None:
            yield Fault(backend, "an interface of the host's own device has no tap device", "remove tap=")


def hostdev_teaming(domain: Domain) -> Iterator[Fault]:
    for hostdev, element in with_child(domain.hostdevs, "teaming"):
        if element.get("type") != "transient" or element.get("persistent") is None or hostdev.get("type") != "pci":
            yield Fault(element, "a PCI device teams as the transient one", "type='transient' persistent='ALIAS'")


def hostdev_rom(domain: Domain) -> Iterator[Fault]:
    for device, rom in with_child(domain.devices, "rom"):
        if rom.get("enabled") == "no" and (rom.get("bar") is not None or rom.get("file") is not None):
            yield warning(rom, "enabled='no' makes libvirt ignore the rest of <rom>", "keep only enabled='no'")
        file = rom.get("file")
        if file and not file.startswith("/"):
            yield Fault(rom, f"the file {file[:60]!r} is no absolute path", "the whole path: QEMU starts elsewhere")
        where = device.find("address")
        if where is not None and where.get("type") not in _TARGETS["pci"]:
            yield Fault(rom, "only PCI devices have a ROM", "remove <rom>")


def alias(domain: Domain) -> Iterator[Fault]:
    named = [(device, alias, alias.get("name", "")) for device, alias in with_child(domain.devices, "alias")]
    for device, alias, name in named:
        if device.tag == "hostdev" and not name.startswith(("ua-", "hostdev")):
            yield warning(alias, "libvirt drops a name that does not begin with ua-", f"ua-{name[:40]}")
    for alias, name, _ in repeats((alias, name) for _, alias, name in named if name.startswith("ua-")):
        yield Fault(alias, f"two devices have the alias {name[:60]}", "give each its own")


_MODELS = {"vfio-pci": ("pci",), "vfio-ccw": ("ccw",), "vfio-ap": ()}
"""Each with the types of address that it has in the guest."""
_OTHER = ("vfio-ccw", "vfio-ap")


def mdev_model(domain: Domain) -> Iterator[Fault]:
    for hostdev in domain.hostdevs_of("mdev"):
        model = hostdev.get("model")
        if model == "vfio-pci" and hostdev.find("boot") is not None:
            yield Fault(hostdev, "QEMU cannot boot from a mediated device", "remove <boot>")
        elif model in _OTHER and hostdev.get("display") is not None:
            yield Fault(hostdev, f"model='{model}' has no display", "remove display=")
        elif model in _OTHER and domain.is_x86:
            yield Fault(hostdev, f"model='{model}' exists on s390 only", "model='vfio-pci'")


def mdev_uuid(domain: Domain) -> Iterator[Fault]:
    for hostdev, source in with_child(domain.hostdevs_of("mdev"), "source"):
        where = hostdev.find("source/address")
        uuid = attribute(where, "uuid")
        element = source if where is None else where
        if uuid is None:
            yield Fault(element, "the source has no uuid", "<address uuid='...'/>")
        elif not is_uuid(uuid):
            yield Fault(element, f"'{uuid[:40]}' is no UUID", "that of vfioctl vgpu list")


def mdev_address(domain: Domain) -> Iterator[Fault]:
    for hostdev, where in with_child(domain.hostdevs_of("mdev"), "address"):
        allowed, kind = _MODELS.get(hostdev.get("model", "")), where.get("type", "")[:40]
        if allowed is not None and where.get("type") not in allowed:
            yield Fault(where, f"{hostdev.get('model')} has no {kind} address", " or ".join(allowed) or "remove it")


def mdev_managed(domain: Domain) -> Iterator[Fault]:
    for hostdev in domain.hostdevs_of("mdev"):
        if hostdev.get("managed") == "yes":
            yield warning(hostdev, "libvirt ignores managed= of a mediated device", "vfioctl vgpu create makes it")
