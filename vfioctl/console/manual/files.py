"""The files that vfioctl reads and writes, as the manual lists them. A test compares them with the sources."""

from __future__ import annotations

from collections.abc import Mapping

FILES: Mapping[str, str] = {
    "/etc/vfioctl/config.toml": "The configuration. vfioctl needs none.",
    "/etc/vfioctl/devices.d": "The devices that are bound to VFIO at each boot; vfioctl-persist(1) lists them.",
    "/etc/vfioctl/disabled": "If it exists, nothing is bound or restored at boot.",
    "/etc/udev/rules.d": "The udev rules of these devices: 61-vfioctl-ADDRESS.rules.",
    "/etc/driverctl.d": "The devices that driverctl(8) binds, which vfioctl persist import can take over.",
    "/etc/systemd/system": "The units that vfioctl-install(1) installs.",
    "/usr/lib/vfioctl": "The script that runs before drivers are loaded; vfioctl-install(1) installs it.",
    "/usr/local/share": "The completions and manual pages that vfioctl-install(1) installs.",
    "/usr/lib/systemd/system": "The units of the Debian package, which vfioctl-install(1) does not copy.",
    "/usr/lib/udev/rules.d": "The udev rule of the Debian package.",
    "/etc/vfioctl/vgpu.d": "The vGPUs and VFs that are created again at each boot.",
    "/etc/mdevctl.d": "Definitions of persistent mediated devices, as mdevctl(8) reads them.",
    "/etc/libvirt/hooks/qemu.d/vfioctl": "The script that libvirt runs for each domain; vfioctl-hook(1) installs it.",
    "/var/lib/vfioctl/ledger.db": "The ledger: claims, changes, and what undoes them. Only root may open it.",
    "/run/vfioctl/public.json": "What other users may know of the ledger.",
    "/run/vfioctl/kubelet.json": "What vfioctl kubelet serve tells of itself, for vfioctl kubelet status.",
    "/var/lib/kubelet": "The kubelet's sockets, and among its device plugins those of vfioctl-kubelet(1).",
    "/var/run/cdi": "The CDI files of vfioctl-cdi(1).",
    "~/.local/state/vfioctl/simulated": "The simulated hosts that were changed, and their ledgers.",
}
