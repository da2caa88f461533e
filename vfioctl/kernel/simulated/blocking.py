"""A simulated device whose write never returned: from then on others block on its lock, until it is let go of."""

from __future__ import annotations

import json
import re

from vfioctl.errors import KernelRefused, Stuck
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import drivers, groups, mediated, rules, surroundings, virtual
from vfioctl.kernel.simulated.refusal import Refusal, WouldBlock

MANAGING = "sriov-manage:"
"""What a run of NVIDIA's tool is called among the writes, before its GPU's address; it takes that one's lock."""
UNDER_LOCK = ("driver_override", "config", "rom", "reset", "bind", "unbindLock", "sriov_numvfs")
"""What the kernel reads or writes with the device's lock in hand, or the console's, or NVIDIA's."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


def subject_of(path: str, value: str = "") -> str:
    """Whose lock a write takes: the function or the instance that it concerns, else the file's own.

    NVML and systemd have theirs; a file of /etc has none but itself, whatever it is called.
    """
    if path.startswith(MANAGING):
        return path.removeprefix(MANAGING)
    if not path.startswith("/") or path.startswith("/etc/"):
        return path
    for text in (value, path):
        if found := _UUID.findall(text):
            return str(found[-1]).lower()
        if found := PCI_ADDRESS.findall(text):
            return str(found[-1])
    return path


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
    if rules.is_vfio(driver) or f"{device}/vfio-dev" in tree.directories:
        return groups.opened(tree, device)
    sounding = surroundings.nodes_below(tree, f"{device}/sound")
    return any(surroundings.open_by(tree, node) for node in sounding)


def block(tree: Tree, path: str, value: str) -> Stuck:
    """Leaves a write in the kernel that has not returned, with what it has done by then."""
    subject = subject_of(path, value)
    if blocked(tree, subject):
        return _never_returned(path, value, subject)
    pending = path if path.startswith("/") else ""  # what NVML or systemd does is not done by a later write
    if path.endswith("/unbind") and subject in tree.directories.get(PCI_DEVICES, ()):
        pending = _detached(tree, tree.resolve(f"{PCI_DEVICES}/{subject}"), path)
    elif path.endswith("/remove") and tree.exists(there := tree.resolve(path)) and value.strip() != "0":
        pending = there
        mediated.hide(tree, there.rpartition("/")[0])
    return _left(tree, pending, path, value)


def _detached(tree: Tree, device: str, path: str) -> str:
    """The driver's link goes at once. What is then still to be done: nothing, or what waits for an instance."""
    try:
        if groups.driver_of(tree, device):
            drivers.device_driver_detach(tree, device)
    except WouldBlock:
        return path
    return ""


def write(tree: Tree, path: str, value: str) -> None:
    """One write, with all that the kernel does before it waits. Raises KernelRefused, Stuck."""
    if never_returns(tree, path, value):
        raise block(tree, path, value)
    pending = tree.resolve(path)  # by another name it may soon be gone
    try:
        rules.write(tree, path, value)
    except WouldBlock:
        raise _left(tree, pending, path, value) from None


def manage_vfs(tree: Tree, address: str, *, on: bool) -> str:
    """NVIDIA's tool, which waits for its writes. Raises Stuck."""
    path = f"{MANAGING}{address}"
    try:
        return virtual.sriov_manage(tree, address, on=on)
    except WouldBlock:
        raise _left(tree, path, path, str(int(on))) from None


def _left(tree: Tree, pending: str, path: str, value: str) -> Stuck:
    subject = subject_of(path, value)
    tree.properties.setdefault(f"sim:{subject}", {})["blocked"] = json.dumps([pending, value])
    return _never_returned(path, value, subject)


def let_go(tree: Tree, subject: str) -> None:
    """What held it has ended: the write returns after all. Whatever else it then waits for has ended too."""
    path, value = json.loads(tree.properties[f"sim:{subject}"].pop("blocked"))
    waits = bool(path)
    while waits:
        waits = False
        try:
            _resume(tree, path, value)
        except WouldBlock:
            waits = True
        except (KernelRefused, Refusal):
            continue


def _resume(tree: Tree, path: str, value: str) -> None:
    if path.startswith(MANAGING):
        virtual.sriov_disable(tree, tree.resolve(f"{PCI_DEVICES}/{subject_of(path)}"))
    else:
        rules.resume(tree, path, value)


def _never_returned(path: str, value: str, address: str) -> Stuck:
    error = Stuck(
        f"writing {value!r} to {path} did not return",
        hint="something holds the device; the write ends when it lets go, or at the next boot",
        next_command="vfioctl recover",
        facts={"path": path, "ticket": f"sim:{address}"},
    )
    error.kernel_said = "simulated: the write never returns"
    return error
