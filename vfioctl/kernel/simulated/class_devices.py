"""What Linux does beside binding: power, consoles, framebuffers, class devices, NVIDIA's lock, resets; on a tree.
Sources: drivers/base/power/sysfs.c, drivers/tty/vt/vt.c, drivers/video/fbdev/core/fbcon.c, drivers/pci/pci.c,
drivers/vfio/pci/vfio_pci_core.c of Linux 6.1, NVIDIA's nv-procfs.c, and observations of a real kernel."""

from __future__ import annotations

import errno as errnos
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated.faults import Refusal
from vfioctl.untrusted_text import parse_json

VTCONSOLES = "/sys/class/vtconsole"
_DESCRIPTOR = re.compile(r"/proc/[0-9]+/fd/")
_CGROUP = re.compile(r"/proc/[0-9]+/cgroup$")
_CLASS_DEVICES = ("accel", "drm", "graphics", "net", "nvme", "sound")


def control_store(tree: Tree, path: str, value: str) -> None:
    if value.rstrip("\n") not in ("on", "auto"):
        raise Refusal(errnos.EINVAL)
    tree.put(path, value.rstrip("\n"))


def d3cold_allowed_store(tree: Tree, path: str, value: str) -> None:
    if not re.fullmatch(r"[0-9]+\n?", value, re.ASCII):
        raise Refusal(errnos.EINVAL)
    tree.put(path, "1" if int(value) else "0")


def vfio_pci_core_runtime_pm(tree: Tree, device: str, *, registered: bool) -> None:
    """vfio-pci allows runtime power management when it is bound, and forbids it when it is unbound."""
    if f"{device}/power/control" in tree.files:
        tree.put(f"{device}/power/control", "auto" if registered else "on")


def store_bind(tree: Tree, path: str, value: str) -> None:
    """Unbinds or binds a vtconsole; the system console is bound in its place. Text without a number is 0."""
    number = re.match(r"[0-9]+", value, re.ASCII)
    bound = number is not None and int(number[0]) != 0
    if value:
        _draw(tree, path.rsplit("/", 2)[-2], bound=bound)
        tree.properties.setdefault("sim:fbcon", {})["released"] = str(int(not bound))


def _draw(tree: Tree, console: str, *, bound: bool) -> None:
    for name in tree.directories.get(VTCONSOLES, ()):
        own, file = name == console, tree.resolve(f"{VTCONSOLES}/{name}/bind")
        if file in tree.files:
            tree.put(file, str(int(bound if own else not bound)))


def _framebuffer_console(tree: Tree) -> str | None:
    files = {name: tree.resolve(f"{VTCONSOLES}/{name}/name") for name in tree.directories.get(VTCONSOLES, ())}
    return min((name for name, file in files.items() if "frame buffer" in tree.files.get(file, "")), default=None)


def fbcon_fb_unregistered(tree: Tree, *, first: bool) -> None:
    """The framebuffer console is unbound with its framebuffer; it does not move to another one."""
    console = _framebuffer_console(tree)
    if console and first:
        _draw(tree, console, bound=False)


def fbcon_fb_registered(tree: Tree) -> None:
    """The framebuffer console is bound again, unless it was unbound through sysfs."""
    console = _framebuffer_console(tree)
    if console and tree.properties.get("sim:fbcon", {}).get("released") != "1":
        _draw(tree, console, bound=True)


def platform_driver_store(tree: Tree, path: str, value: str) -> None:
    home, _, verb = path.rpartition("/")
    name = value.rstrip("\n")
    bound = f"{home}/{name}" in tree.links
    if bound == (verb == "bind") or not re.fullmatch(r"[a-z0-9-]+\.[0-9]+", name, re.ASCII):
        raise Refusal(errnos.ENODEV)
    if verb == "unbind":
        tree.remove(f"{home}/{name}")
    else:
        tree.put_link(f"{home}/{name}", f"../../../../devices/platform/{name}")


def class_devices_gone(tree: Tree, device: str) -> None:
    """Removes the class devices of a driver and saves them for `class_devices_back`."""
    address = posixpath.basename(device)
    first = _is_first_framebuffer(tree, device)
    kept = {path: fact for home in _of_driver(tree, device) for path, fact in taken(tree, home).items()}
    if kept:
        tree.properties.setdefault(f"sim:{address}", {})["registered"] = json.dumps(kept, sort_keys=True)
    if any("/graphics/" in path for path in kept):
        fbcon_fb_unregistered(tree, first=first)


def class_devices_back(tree: Tree, device: str) -> None:
    """Restores the class devices under the same names; NVIDIA's unbindLock is 0 again."""
    subject = f"sim:{posixpath.basename(device)}"
    kept: Mapping[str, Kept] = parse_json(tree.properties.get(subject, {}).pop("registered", "{}"))
    for path, fact in kept.items():
        put_back(tree, path, ("text", "0") if path.endswith("/unbindLock") else fact)
    if any("/graphics/" in path for path in kept):
        fbcon_fb_registered(tree)


def _of_driver(tree: Tree, device: str) -> Iterator[str]:
    yield from (f"{device}/{name}" for name in _CLASS_DEVICES if f"{device}/{name}" in tree.directories)
    gpu = f"/proc/driver/nvidia/gpus/{posixpath.basename(device)}"
    if gpu in tree.directories:
        yield gpu
    for group in ("graphics", "net", "drm", "sound"):
        for name in tuple(tree.directories.get(f"/sys/class/{group}", ())):
            link = f"/sys/class/{group}/{name}"
            if link in tree.links and tree.resolve(link).startswith(f"{device}/"):
                yield link


def _is_first_framebuffer(tree: Tree, device: str) -> bool:
    own = tree.directories.get(f"{device}/graphics", set())
    named = (n for n in tree.directories.get("/sys/class/graphics", ()) if re.fullmatch(r"fb[0-9]+", n))
    return min((*own, *named), key=lambda name: (len(name), name), default="") in own


Kept = Sequence[Any]
"""What was at a path: the kind of fact, and the fact as JSON has it."""
_PUT: Mapping[str, Callable[[Tree, str, Any], None]] = {
    "text": Tree.put,
    "link": Tree.put_link,
    "errno": Tree.put_refused,
    "node": lambda tree, path, node: tree.put_node(path, Node(*node)),
    "directory": lambda tree, path, _: tree.put_directory(path),
}


def taken(tree: Tree, home: str) -> dict[str, Kept]:
    """Removes a path and everything below it. Returns the removed facts by path, for `put_back`."""
    tables: dict[str, Mapping[str, Any]]
    tables = {"text": tree.files, "link": tree.links, "errno": tree.refused, "node": tree.nodes}
    kept: dict[str, Kept] = {}
    for path in (home, *below(tree, home)) if tree.exists(home) else ():
        facts = ((kind, table[path]) for kind, table in tables.items() if path in table)
        kept[path] = next(facts, ("directory", None))
    tree.remove(home)
    return kept


def below(tree: Tree, home: str) -> Iterator[str]:
    """All paths below one, parents before children."""
    for name in sorted(tree.directories.get(home, ())):
        yield f"{home}/{name}"
        yield from below(tree, f"{home}/{name}")


def put_back(tree: Tree, path: str, fact: Kept) -> None:
    """Restores one fact that `taken` has removed."""
    kind, value = fact
    _PUT[kind](tree, path, value)


def nv_procfs_close_unbind_lock(tree: Tree, path: str, value: str) -> None:
    """Accepts every write, but grants the lock only while nobody uses the GPU."""
    address = path.rsplit("/", 2)[-2]
    wanted = value.strip()
    if wanted == "0" or (wanted == "1" and not _used(tree, address)):
        tree.put(path, wanted)


def _used(tree: Tree, address: str) -> bool:
    in_use = tree.properties.get(f"sim:{address}", {}).get("in_use") == "1"
    persistent = tree.properties.get(f"nvml:{address}", {}).get("persistence_mode") == "1"
    return in_use or persistent or bool(open_by(tree, _nvidia_node(tree, address)))


def _nvidia_node(tree: Tree, address: str) -> str:
    information = tree.files.get(f"/proc/driver/nvidia/gpus/{address}/information", "")
    minor = re.search(r"Device Minor:\s*([0-9]+)", information)
    return f"/dev/nvidia{minor[1]}" if minor else ""


def set_persistence(tree: Tree, address: str, *, on: bool) -> None:
    """Sets persistence mode. Turning it off makes the daemon close the GPU."""
    tree.properties[f"nvml:{address}"]["persistence_mode"] = str(int(on))
    for link in () if on else open_by(tree, _nvidia_node(tree, address)):
        if "nvidia-persistenced.service" in tree.files.get(f"{link.rpartition('/fd/')[0]}/cgroup", ""):
            tree.remove(link)


def open_by(tree: Tree, node: str) -> tuple[str, ...]:
    """The links in /proc/PID/fd to a node."""
    return tuple(link for link, target in tree.links.items() if node and target == node and _DESCRIPTOR.match(link))


def nodes_below(tree: Tree, home: str) -> Iterator[str]:
    """The nodes in /dev of the class devices below a directory, by their numbers."""
    numbers = {tree.files[path] for path in below(tree, home) if path.endswith("/dev") and path in tree.files}
    return (path for path, node in tree.nodes.items() if f"{node.major}:{node.minor}" in numbers)


def set_unit(tree: Tree, name: str, *, active: bool) -> None:
    """Starts or stops a unit, and its processes with it."""
    facts = tree.properties[f"unit:{name}"]
    facts["state"] = "active" if active else "inactive"
    if active:
        for path, fact in parse_json(facts.pop("processes", "{}")).items():
            put_back(tree, path, fact)
        return
    own = [p.rpartition("/")[0] for p, text in tree.files.items() if _CGROUP.match(p) and f"/{name}" in text]
    kept = {path: fact for process in own for path, fact in taken(tree, process).items()}
    if kept:
        facts["processes"] = json.dumps(kept, sort_keys=True)


def reset_store(tree: Tree, path: str, value: str) -> None:
    if value.strip() != "1":
        raise Refusal(errnos.EINVAL)
    device = path.rpartition("/")[0]
    methods = tree.files.get(f"{device}/reset_method", "").split()
    if path.endswith("/reset") and methods[:1] == ["bus"] and len([*_children_of(tree, posixpath.dirname(device))]) > 1:
        raise Refusal(errnos.ENOTTY)  # pci_parent_bus_reset: siblings would be reset too
    for hit in (device,) if path.endswith("/reset") else tuple(_children_of(tree, device)):
        facts = tree.properties.setdefault(f"sim:{posixpath.basename(hit)}", {})
        facts["resets"] = str(int(facts.get("resets", "0")) + 1)
        if facts.get("dies_on_reset") == "1":
            facts["dead"] = "1"


def reset_method_store(tree: Tree, path: str, value: str) -> None:
    """Accepts only methods that the device has; `default` restores all of them."""
    subject = f"sim:{posixpath.basename(path.rpartition('/')[0])}"
    facts = tree.properties.setdefault(subject, {})
    all_of_them = facts.setdefault("reset_methods", tree.files[path])
    wanted = all_of_them if value.strip() == "default" else value.strip()
    if not set(wanted.split()) <= set(all_of_them.split()):
        raise Refusal(errnos.EINVAL)
    tree.put(path, wanted)


def _children_of(tree: Tree, bridge: str) -> Iterator[str]:
    addresses = tree.directories.get(PCI_DEVICES, ())
    return (f"{bridge}/{name}" for name in sorted(tree.directories.get(bridge, ())) if name in addresses)
