"""Single facts in plain words: sizes, links, drivers, groups. The same words in every drawing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:  # the words for vGPUs need none of these
    from vfioctl.inventory.model.functions import Function, Group, Inventory, Link, Mark, NumaNode
    from vfioctl.inventory.model.values import PciAddress

NONE = "none"
UNKNOWN = "unknown"


def plain(text: str) -> str:
    """Without control characters: a recorded host comes from elsewhere and may not drive the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def size(count: int) -> str:
    """Bytes in the largest binary unit that keeps at most one decimal."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def counted(count: int, noun: str) -> str:
    """`1 GPU`, `8 GPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(items: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = [str(item) for item in items]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1] if words else "")))


def link_pair(speed: float | None, width: int | None) -> str:
    """`32 GT/s x16`."""
    parts = (f"{speed:g} GT/s" if speed is not None else "", f"x{width}" if width is not None else "")
    return " ".join(filter(None, parts)) or UNKNOWN


def link_now(link: Link | None) -> str:
    return link_pair(link.speed, link.width) if link else ""


def driver_text(name: str | None, *, on_vfio: bool = False) -> Text:
    """The driver's name; green when the device is out of the host's hands."""
    return Text(plain(name), style="green" if on_vfio else "") if name else Text(NONE, style="dim")


def function_driver(function: Function) -> Text:
    return driver_text(function.driver, on_vfio=function.on_vfio)


def driver_or_mark(function: Function) -> Text:
    """Where there is no column for what the ledger says against a device."""
    return Text(function.mark.kind, style="bold red") if function.mark else function_driver(function)


def group_name(number: int | None) -> str:
    return NONE if number is None else str(number)


def node_name(number: int | None) -> str:
    """The firmware's silence (-1) is `unknown`; node 0 is never assumed."""
    return UNKNOWN if number is None else str(number)


def node_heading(number: int | None, node: NumaNode | None) -> str:
    """`NUMA node 0   CPUs 0-55   503 GiB`."""
    if number is None:
        return "NUMA node unknown   the firmware does not say"
    from vfioctl.inventory.model.values import format_cpu_list

    cpus = f"CPUs {format_cpu_list(node.cpus)}" if node and node.cpus else ""
    memory = size(node.memory_bytes) if node and node.memory_bytes is not None else ""
    return "   ".join(filter(None, (f"NUMA node {number}", cpus, memory)))


def guest_state(function: Function, group: Group | None) -> Text:
    """`ready`: a guest could have it now. `blocked`: it is on VFIO, and someone else in its group is not.

    `wedged` or `dead`: what the ledger says against it.
    """
    if function.mark:
        return Text(function.mark.kind, style="bold red")
    if not function.on_vfio or group is None:
        return Text("no")
    return Text("ready", style="green") if group.viable else Text("blocked", style="red")


def mark_line(mark: Mark) -> str:
    """`0000:41:00.0 is wedged since 16:20:01 UTC: ...`."""
    from vfioctl.inventory.model.functions import MarkKind

    then = "recover settles it" if mark.kind == MarkKind.WEDGED else "it is kept from guests until a reboot"
    return f"{mark.address} is {mark.kind} since {plain(mark.since[11:19])} UTC: {plain(mark.why)}; {then}."


def gpu_names(inventory: Inventory) -> dict[PciAddress, str]:
    """The short names by which a command line may call the GPUs."""
    return {address: name for name, address in inventory.numbered_gpus.items()}


def name_of(function: Function) -> str:
    """What it is; for a device that no database knows, its class and ids."""
    known = function.title
    if known == f"{function.vendor_id}:{function.device_id}" and function.class_name:
        known = f"{function.class_name} {known}"
    return plain(known)


def blockers(group: Group) -> str:
    """`0000:03:00.0 (ahci) and 0000:03:00.1 (xhci_hcd)`."""
    return listed(f"{blocker.address} ({plain(blocker.driver)})" for blocker in group.blockers)


def iommu_line(inventory: Inventory) -> str:
    """`IOMMU: amd-vi, on`; when it is off, why."""
    iommu = inventory.iommu
    state = "on" if iommu.translating else "off, so no device can go to a guest"
    kind = f"{plain(iommu.kind)}, " if iommu.kind else ""
    reason = f": {plain(iommu.reason)}" if iommu.reason else ""
    return f"IOMMU: {kind}{state}{reason}"
