"""Which libvirt and QEMU know what. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping

SINCE: Mapping[tuple[str, str], tuple[int, int]] = {
    ("cpu", "maxphysaddr"): (8, 7),
    ("features/hyperv", "avic"): (8, 10),
    ("devices", "crypto"): (9, 1),
    ("cpu/maxphysaddr", "limit"): (9, 3),
    ("devices/disk/driver", "iothreads"): (10, 0),
    ("devices/hostdev/driver", "model"): (10, 0),
    ("devices/controller/target", "memReserve"): (10, 3),
    ("features", "ras"): (10, 4),
    ("devices", "pstore"): (10, 6),
    ("features", "ps2"): (10, 7),
    ("features/hyperv", "emsr_bitmap"): (10, 7),
    ("features/hyperv", "xmm_input"): (10, 7),
    (".", "throttlegroups"): (11, 2),
    ("devices/controller/driver", "iothreads"): (11, 2),
    ("devices/iommu/driver", "passthrough"): (11, 5),
    ("devices/iommu/driver", "xtsup"): (11, 5),
    (".", "hwuuid"): (11, 7),  # not in NEWS
    ("devices/hostdev/acpi", "nodeset"): (11, 8),
    ("devices/hostdev/driver", "iommufd"): (12, 1),
    (".", "iommufd"): (12, 2),
    ("cputune", "energytune"): (12, 4),
}
"""The libvirt that knows a name; older ones drop it, or refuse it. Source: libvirt's NEWS.rst, under the version."""
VALUES_SINCE: Mapping[tuple[str, str, str], tuple[int, int]] = {
    ("devices/iommu", "model", "virtio"): (8, 3),
    ("devices/panic", "model", "pvpanic"): (9, 1),
    ("launchSecurity", "type", "sev-snp"): (10, 5),
    ("devices/iommu", "model", "amd"): (11, 5),
    ("devices/disk/target", "bus", "nvme"): (11, 5),
    ("launchSecurity", "type", "tdx"): (11, 6),  # not in NEWS
}
"""The libvirt that knows the value of an attribute; older ones refuse it. Source: libvirt's NEWS.rst."""
WITH_DEVICES: Mapping[str, tuple[int, int]] = {"sev-snp": (9, 2), "tdx": (10, 1)}
"""The QEMU that gives a guest with this launchSecurity devices of the host: 9.1 fails for sev-snp with "Cannot set
discarding of RAM broken" (https://github.com/kubevirt/kubevirt/issues/16407), and 10.1 is the first one with tdx."""


def version_of(number: int | None) -> tuple[int, int] | None:
    """Return a version that libvirt reports as 1000000 * major + 1000 * minor + release; None for None."""
    return None if number is None else (number // 1_000_000, number // 1000 % 1000)


def version_text(version: tuple[int, ...]) -> str:
    """Return a version as it is written, such as 9.0."""
    return ".".join(map(str, version))
