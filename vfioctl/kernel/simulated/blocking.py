"""Simulated writes that never return. Other accesses block on the device's lock until the device is released."""

from __future__ import annotations

import json

from vfioctl.errors import KernelRefused, Stuck
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import class_devices, drivers, groups, mediated, rules, virtual
from vfioctl.kernel.simulated.faults import Refusal, WouldBlock
from vfioctl.units import UUID
from vfioctl.untrusted_text import parse_json

MANAGING = "sriov-manage:"
"""The prefix of the path by which a run of NVIDIA's tool is recorded; the GPU's address follows."""
UNDER_LOCK = ("driver_override", "config", "rom", "reset", "bind", "unbindLock", "sriov_numvfs")
"""Files that the kernel reads or writes under the lock of the device, of the console or of NVIDIA's driver."""


def subject_of(path: str, value: str = "") -> str:
    """The subject whose lock a write takes: the function or the vGPU of the file, else the file itself. NVML and
    systemd have locks of their own. For a file below /etc it is always the file."""
    if path.startswith(MANAGING):
        return path.removeprefix(MANAGING)
    if not path.startswith("/") or path.startswith("/etc/"):
        return path
    for text in (value, path):
        if subject := UUID.findall(text):
            return str(subject[-1]).lower()
        if subject := PCI_ADDRESS.findall(text):
            return str(subject[-1])
    return path


def step_of(path: str) -> str:
    """What the timeout of a write is found by: the path of a file, or the step's name."""
    if path.startswith("/"):
        return path
    return "libvirt-start" if path == "libvirt:start" else path.partition(":")[0]


def blocked(tree: Tree, subject: str) -> bool:
    return "blocked" in tree.properties.get(f"sim:{subject}", {})


def never_returns(tree: Tree, path: str, value: str) -> bool:
    """Whether an unbind waits: vfio for a guest, ALSA for a process that has the sound card open."""
    address = subject_of(path, value)
    if not path.endswith("/unbind") or address not in tree.directories.get(PCI_DEVICES, ()):
        return False
    device = tree.resolve(f"{PCI_DEVICES}/{address}")
    driver = groups.driver_of(tree, device) or ""
    if not path.endswith(f"/{driver}/unbind"):
        return False
    if groups.is_vfio_device(tree, device):
        return groups.opened(tree, device)
    sounding = class_devices.nodes_below(tree, f"{device}/sound")
    return any(class_devices.open_by(tree, node) for node in sounding)


def block(tree: Tree, path: str, value: str) -> Stuck:
    """Blocks a write, after the part that the kernel does before it waits. Returns the error to raise."""
    subject = subject_of(path, value)
    if blocked(tree, subject):
        return _never_returned(path, value, subject)
    pending = path if path.startswith("/") else ""  # calls of NVML or systemd are not resumed
    if path.endswith("/unbind") and subject in tree.directories.get(PCI_DEVICES, ()):
        pending = _detached(tree, tree.resolve(f"{PCI_DEVICES}/{subject}"), path)
    elif path.endswith("/remove") and tree.exists(resolved := tree.resolve(path)) and value.strip() != "0":
        pending = resolved
        mediated.hide(tree, resolved.rpartition("/")[0])
    return _blocked_write(tree, pending, path, value)


def _detached(tree: Tree, device: str, path: str) -> str:
    """Removes the driver's link at once. Returns the write to resume, if a mediated device blocks the rest."""
    try:
        if groups.driver_of(tree, device):
            drivers.device_driver_detach(tree, device)
    except WouldBlock:
        return path
    return ""


def write(tree: Tree, path: str, value: str) -> None:
    """One write. One that blocks does first what the kernel does before it waits. Raises KernelRefused, Stuck."""
    if never_returns(tree, path, value):
        raise block(tree, path, value)
    pending = tree.resolve(path)  # resolved now: the links may be removed by the write
    try:
        rules.write(tree, path, value)
    except WouldBlock:
        raise _blocked_write(tree, pending, path, value) from None


def manage_vfs(tree: Tree, address: str, *, on: bool) -> str:
    """NVIDIA's tool, which waits for its writes. Raises Stuck."""
    path = f"{MANAGING}{address}"
    try:
        return virtual.sriov_manage(tree, address, on=on)
    except WouldBlock:
        raise _blocked_write(tree, path, path, str(int(on))) from None


def _blocked_write(tree: Tree, pending: str, path: str, value: str) -> Stuck:
    subject = subject_of(path, value)
    tree.properties.setdefault(f"sim:{subject}", {})["blocked"] = json.dumps([pending, value])
    return _never_returned(path, value, subject)


def release(tree: Tree, subject: str) -> None:
    """Ends the holder of a subject: the blocked write finishes, and further holders that it waits for end too."""
    path, value = parse_json(tree.properties[f"sim:{subject}"].pop("blocked"))
    while path:
        try:
            if path.startswith(MANAGING):
                virtual.sriov_disable(tree, tree.resolve(f"{PCI_DEVICES}/{subject_of(path)}"))
            else:
                rules.resume(tree, path, value)
            return
        except WouldBlock:
            continue
        except (KernelRefused, Refusal):
            return


def _never_returned(path: str, value: str, address: str) -> Stuck:
    hint = "something holds the device; the write ends when it is released, or at the next boot"
    facts = {"path": path, "ticket": f"sim:{address}"}
    why = f"writing {value!r} to {path} did not return"
    error = Stuck(why, hint=hint, next_command="vfioctl recover", facts=facts)
    error.kernel_said = "simulated: the write never returns"
    return error
