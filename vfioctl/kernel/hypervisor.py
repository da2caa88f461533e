"""The parts of the kernel protocol about libvirt and disk images. May not import what asks libvirt."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class DiskImage(NamedTuple):
    """A disk image. `file`: the same text for each name of the same file or block device.

    `backing`: the path of the image that it is based on, which it reads; empty if it has none, or it is not known.
    """

    file: str
    backing: str = ""


class DiskImages(Protocol):
    """Disk images of domains."""

    def disk_image(self, path: str) -> DiskImage:
        """The image at a path, which need not exist: which file it is, and on which image it is based."""


class Domains(DiskImages, Protocol):
    """Asks libvirt."""

    def ask_libvirt(self, uri: str, question: str, *words: str) -> Any:
        """The answer to one of the QUESTIONS of `vfioctl.kernel.libvirt`, plain data; asked in a worker.

        A recorded or a simulated host has libvirt's test driver only (`test:`). A simulated one keeps what it is told
        to define in /etc/libvirt/qemu, as libvirtd does, because the test driver forgets it with the connection.
        Raises what `libvirt.value_of` raises; HostError if there is no answer.
        """


class DomainOrders(Protocol):
    """Defines libvirt's domains."""

    def tell_libvirt(self, uri: str, order: str, *words: str) -> None:
        """Gives one of the ORDERS of `vfioctl.kernel.libvirt`.

        Raises what `libvirt.value_of` raises; Stuck when it did not return in time.
        """
