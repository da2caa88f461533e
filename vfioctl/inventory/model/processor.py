"""What a host's processor is. May not do input or output."""

from __future__ import annotations

from vfioctl.core.frozen import record_class


@record_class
class Processor:
    """The processor, as /proc/cpuinfo reports it."""

    arch: str
    """As libvirt and QEMU name it: x86_64, aarch64; ppc64le also for ppc64."""
    is_amd: bool = False
    vendor: str = ""
    """As cpuinfo names it: GenuineIntel, AuthenticAMD; empty if it does not."""
    family: str = ""
    model: str = ""
    address_bits: int | None = None
    """The width of physical addresses; None if it is not known."""

    @property
    def is_x86(self) -> bool:
        return self.arch == "x86_64"
