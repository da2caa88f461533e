"""The part of the kernel protocol that is about libvirt. See `vfioctl.kernel.libvirt`, which this may not import."""

from __future__ import annotations

from typing import Any, Protocol


class Domains(Protocol):
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
