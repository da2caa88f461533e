"""What vfioctl keeps in /etc/vfioctl/vgpu.d, to be made again at boot. Reads only.

Root alone writes there, and still each file is read with suspicion: one that is damaged costs only itself.
"""

from __future__ import annotations

from vfioctl.core.setting import KEPT_HERE
from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import PCI_ADDRESS, Reader
from vfioctl.vgpu.model.persistent import Kept

_LONGEST = 65_536


def read_kept(kernel: Reader) -> tuple[list[Kept], list[tuple[str, str]]]:
    """The counts of VFs before the vGPUs on them, and path and text of what could not be read."""
    found, problems = [], []
    for name in names_in(kernel, KEPT_HERE):
        path, device = f"{KEPT_HERE}/{name}", name.removesuffix(".json")
        if not name.endswith(".json") or not PCI_ADDRESS.fullmatch(device):
            continue
        try:
            kept = Kept.model_validate_json(kernel.read(path)[:_LONGEST])
        except KernelRefused as error:
            problems.append((path, error.symbol))
        except ValueError as error:
            problems.append((path, f"not a file of vfioctl: {_said(error)[:80]}"))
        else:
            if kept.device == device and (kept.vfs is None) != (kept.type is None):
                found.append(kept)
            else:
                problems.append((path, "it is not about the device that it is named after"))
    return sorted(found, key=lambda kept: (kept.vfs is None, kept.device.order)), problems


def _said(error: ValueError) -> str:
    """What is wrong, without where pydantic explains it."""
    return str(error).splitlines()[-2:][0].partition(" [type=")[0].strip()
