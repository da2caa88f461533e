"""Rules about devices of which a guest has few: USB, TPM, watchdogs, serial ports; disks; shared memory. May not do
input or output. Source: libvirt's domain_conf.c, domain_postparse.c and qemu_validate.c."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.rule import Fault, refused_before, repeats, warning, with_child
from vfioctl.domain.document.other_domains import written_images
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, number

_USB = (
    "controller[@type='usb']",
    "input[@bus='usb']",
    "hub[@type='usb']",
    "hostdev[@type='usb']",
    "redirdev[@bus='usb']",
    "sound[@model='usb']",
    "disk/target[@bus='usb']",
    "serial/target[@type='usb-serial']",
)
_SEVERAL_WATCHDOGS, _READ_ONLY = (9, 1), (11, 0)
"""Source: libvirt's NEWS.rst, but not of watchdogs; 9.0 refuses several."""
_MANY = "i6300esb"
"""The one model of watchdogs of which libvirt accepts several."""


def usb_none(domain: Domain) -> Iterator[Fault]:
    """A controller with the model none is the only one, and nothing is on it."""
    off = domain.one("devices/controller[@type='usb'][@model='none']")
    for path in _USB if off is not None else ():
        for element in domain.all(f"devices/{path}"):
            if element is not off:
                reason = "USB is off: there is a controller with model='none'"
                yield Fault(element, reason, "remove it, or that controller")


def tpm(domain: Domain) -> Iterator[Fault]:
    """One, and on POWER one that is a proxy beside it. The CRB interface is of TPM 2.0."""
    elements = domain.all("devices/tpm")
    for device in elements:
        if device.get("model") == "tpm-crb" and attribute(device.find("backend"), "version") == "1.2":
            yield Fault(device, "tpm-crb has no TPM 1.2", "version='2.0', or the model tpm-tis")
    for is_proxy in (True, False):
        for extra in [device for device in elements if (device.get("model") == "spapr-tpm-proxy") is is_proxy][1:]:
            yield Fault(extra, "a second TPM", "keep one of them")


def watchdog(domain: Domain) -> Iterator[Fault]:
    elements = domain.all("devices/watchdog")
    seen: set[str] = set()
    for device in elements:
        model = device.get("model", "")
        if model in seen and model != _MANY:
            yield Fault(device, f"a second watchdog of the model {model[:40]}", "keep one of them")
        elif device.get("action", "reset") != elements[0].get("action", "reset"):
            yield Fault(device, "watchdogs with different actions", "the same action= for all")
        elif seen:
            reason = "a second watchdog, which libvirt before {} refuses"
            yield from refused_before(domain, _SEVERAL_WATCHDOGS, device, reason, "keep one of them")
        seen.add(model)


def panic(domain: Domain) -> Iterator[Fault]:
    """One of each model. Without a model it is the ISA device, on x86."""
    unnamed = "isa" if domain.is_x86 else ""
    for device, model, _ in repeats((panic, panic.get("model", unnamed)) for panic in domain.all("devices/panic")):
        yield Fault(device, f"a second panic device of the model {model[:40]}", "keep one of them")


def video_none(domain: Domain) -> Iterator[Fault]:
    elements = domain.all("devices/video")
    for element in domain.all("devices/video/model[@type='none']") if len(elements) > 1 else ():
        yield Fault(element, "a video device of type='none' beside another", "remove it, or all others")


_FIRST_CID = 3
"""Source: libvirt's virDomainVsockDefValidate; 0 to 2 are the hypervisor's, the loopback's and the host's."""


def vsock(domain: Domain) -> Iterator[Fault]:
    for extra in domain.all("devices/vsock")[1:]:
        yield Fault(extra, "a second vsock", "keep one of them")
    for element in domain.all("devices/vsock/cid"):
        address = number(element.get("address"))
        if address is not None and address < _FIRST_CID:
            yield Fault(element, f"guest CID {address}: the first one for a guest is {_FIRST_CID}", "auto='yes'")


def queue_count(domain: Domain) -> Iterator[Fault]:
    """libvirt reads 0 as if nothing were said, and its schema, which `virsh edit` asks, refuses it."""
    for element in domain.all("devices/*/driver[@queues]"):
        if number(element.get("queues")) == 0:
            yield warning(element, "queues='0' is no number of queues", "one for each vCPU, or remove it")


def serial_port(domain: Domain) -> Iterator[Fault]:
    ports = domain.all("devices/serial/target[@type='isa-serial']")
    for element, port, other in repeats((element, number(element.get("port"))) for element in ports):
        reason = f"port {port} is also that of {domain.document.path(other)}"
        yield Fault(element, reason, "give each its own port=, or leave it to libvirt")


def shared_memory(domain: Domain) -> Iterator[Fault]:
    """What another process serves needs to see the guest's memory: that of each cell, or all."""
    access = domain.at("memoryBacking/access").get("mode")
    cells = [cell.element.get("memAccess", access) for cell in domain.cells] or [access]
    if all(cell == "shared" for cell in cells):
        return
    served = (("filesystem/driver[@type='virtiofs']", "virtiofs"), ("disk[@type='vhostuser']", "a vhostuser disk"))
    for path, what in served:
        for element in domain.all(f"devices/{path}"):
            remedy = "<memoryBacking><access mode='shared'/>, and no memAccess='private' of a cell"
            yield Fault(element, f"{what} needs memory that QEMU shares", remedy)


def filesystem_readonly(domain: Domain) -> Iterator[Fault]:
    for element in domain.all("devices/filesystem/driver[@type='virtiofs']/../readonly"):
        reason = "virtiofs that is read-only, which libvirt before {} refuses"
        yield from refused_before(domain, _READ_ONLY, element, reason, "remove it, and export what may be written to")


_UNCACHED = ("none", "directsync")


def disk_target(domain: Domain) -> Iterator[Fault]:
    for disk, name, other in repeats(_attributes(domain, "target", "dev")):
        reason = f"target {name[:40]} is also that of {domain.document.path(other)}"
        yield Fault(disk, reason, "give each disk its own dev=, whatever its bus")


def disk_iothread(domain: Domain) -> Iterator[Fault]:
    for disk, thread in _attributes(domain, "driver", "iothread"):
        target = disk.find("target")
        bus = "virtio" if target is None else target.get("bus", "virtio")
        if disk.get("type") == "vhostuser":
            yield Fault(disk, "a vhostuser disk has no I/O thread", "remove iothread=: another process serves the disk")
        elif bus != "virtio":
            yield Fault(disk, f"a disk on bus {bus[:40]} has no I/O thread", "remove iothread=, or bus='virtio'")
        elif number(thread) not in domain.iothreads:
            yield Fault(disk, f"there is no I/O thread {thread[:40]}", "<iothreads>, or another iothread=")


def disk_cache(domain: Domain) -> Iterator[Fault]:
    """Linux AIO needs an image that the host does not cache, and cache= says so: its default is QEMU's."""
    for disk, mode in _attributes(domain, "driver", "io"):
        cache = attribute(disk.find("driver"), "cache")
        if mode == "native" and cache not in _UNCACHED:
            shown = f"cache='{cache[:40]}'" if cache else "no cache="
            yield Fault(disk, f"io='native' with {shown}", "cache='none' or cache='directsync', or another io=")


def disk_image(domain: Domain) -> Iterator[Fault]:
    """libvirt accepts it. QEMU locks images, and does not start; where there are no locks, both disks write."""
    for disk, image, other in repeats(written_images(domain)):
        reason = f"{image[:200]} is also the image of {domain.document.path(other)}: QEMU locks it once"
        yield warning(disk, reason, "an image of its own, or <readonly/> or <shareable/> for both")


def _attributes(domain: Domain, child: str, name: str) -> Iterator[tuple[Element, str]]:
    """The disks of which a child has this attribute, and its value."""
    for disk, element in with_child(domain.all("devices/disk"), child):
        if value := element.get(name):
            yield disk, value
