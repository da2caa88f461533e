"""The table of rules about a host: their names, which stay the same in later releases. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping

from vfioctl.domain.check.rules import host_cpus, host_devices, host_memory
from vfioctl.domain.check.rules.host import HostRule

HOST_RULES: Mapping[str, HostRule] = {
    "host-architecture": host_cpus.architecture,
    "host-address-bits": host_cpus.address_bits,
    "host-cpu": host_cpus.online,
    "host-cpu-claimed": host_cpus.claimed,
    "host-cpu-shared": host_cpus.shared,
    "host-cpu-count": host_cpus.enough,
    "host-cpu-node": host_cpus.near_memory,
    "host-cpu-threads": host_cpus.threads,
    "host-cpu-topoext": host_cpus.topoext,
    "host-node": host_memory.nodes,
    "host-memory": host_memory.fits,
    "host-hugepages": host_memory.hugepages,
    "host-iommu": host_devices.translated,
    "host-device": host_devices.exist,
    "host-driver": host_devices.driver,
    "host-group": host_devices.group,
    "host-card": host_devices.companions,
    "host-device-claimed": host_devices.claimed,
    "host-device-busy": host_devices.busy,
    "host-mdev": host_devices.mdevs,
    "host-device-node": host_devices.node,
    "host-pci-hole": host_devices.hole,
}
