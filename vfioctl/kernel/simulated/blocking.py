"""A simulated device whose write never returned: from then on others block on its lock, until it is let go of."""

from __future__ import annotations

import json
from contextlib import suppress

from vfioctl.errors import KernelRefused, Stuck
from vfioctl.kernel.seam import PCI_ADDRESS, PCI_DEVICES
from vfioctl.kernel.simulated import rules, surroundings
from vfioctl.kernel.tree import Tree

UNDER_LOCK = ("driver_override", "config", "rom", "reset", "bind", "unbindLock")
"""What the kernel reads or writes with the device's lock in hand, or the console's, or NVIDIA's."""


def subject_of(path: str, value: str = "") -> str:
    """Whose lock a write takes: the function that it concerns, else the file's own; NVML and systemd have theirs."""
    found = (PCI_ADDRESS.findall(value) or PCI_ADDRESS.findall(path)) if path.startswith("/") else []
    return str(found[-1]) if found else path


def blocked(tree: Tree, subject: str) -> bool:
    return "blocked" in tree.properties.get(f"sim:{subject}", {})


def never_returns(tree: Tree, path: str, value: str) -> bool:
    """Whether an unbinding waits for somebody: vfio for a guest, ALSA for whoever has the sound card open."""
    address = subject_of(path, value)
    if not path.endswith("/unbind") or address not in tree.directories.get(PCI_DEVICES, ()):
        return False
    device = tree.resolve(f"{PCI_DEVICES}/{address}")
    driver = rules.driver_of(tree, device) or ""
    if not path.endswith(f"/{driver}/unbind"):
        return False
    if rules.is_vfio(driver):
        return bool(surroundings.open_by(tree, f"/dev/vfio/{rules.group_of(tree, device)}"))
    sounding = surroundings.nodes_below(tree, f"{device}/sound")
    return any(surroundings.open_by(tree, node) for node in sounding)


def block(tree: Tree, path: str, value: str) -> Stuck:
    """Leaves the write in the kernel. An unbinding has lost the driver's link by then, as on a real one."""
    address = subject_of(path, value)
    if blocked(tree, address):
        return never_returned(path, value, address)
    pending = path if path.startswith("/") else ""  # what NVML or systemd does is not done by a later write
    if path.endswith("/unbind") and address in tree.directories.get(PCI_DEVICES, ()):
        device = tree.resolve(f"{PCI_DEVICES}/{address}")
        if rules.driver_of(tree, device):
            rules.device_driver_detach(tree, device)
        pending = ""
    tree.properties.setdefault(f"sim:{address}", {})["blocked"] = json.dumps([pending, value])
    return never_returned(path, value, address)


def let_go(tree: Tree, subject: str) -> None:
    """What held it has ended: the write returns after all."""
    path, value = json.loads(tree.properties[f"sim:{subject}"].pop("blocked"))
    if path:
        with suppress(KernelRefused):
            rules.write(tree, path, value)


def never_returned(path: str, value: str, address: str) -> Stuck:
    error = Stuck(
        f"writing {value!r} to {path} did not return",
        hint="something holds the device; the write ends when it lets go, or at the next boot",
        next_command="vfioctl recover",
        facts={"path": path, "ticket": f"sim:{address}"},
    )
    error.kernel_said = "simulated: the write never returns"
    return error
