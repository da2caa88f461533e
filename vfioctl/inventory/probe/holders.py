"""Who holds some functions: processes and guests, disks and interfaces in use, and the kernel. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from vfioctl.errors import KernelRefused
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.values import PciAddress, Subject, Uuid
from vfioctl.inventory.probe import attachments
from vfioctl.inventory.probe.disks import Disks
from vfioctl.inventory.probe.guests import device_at
from vfioctl.inventory.probe.network import Network
from vfioctl.inventory.probe.nodes import NumbersReader, own_numbers, plain, read_below
from vfioctl.inventory.probe.processes import Process, Processes, identities
from vfioctl.inventory.probe.remedies import remedy
from vfioctl.kernel.lenient import link_name, names_in, number_of
from vfioctl.kernel.protocol import PCI_DEVICES, VFIO_DEVICE, Descendant, Reader, Unanswered
from vfioctl.vgpu.dialects.dialect import number_in

_MDEVS = "/sys/bus/mdev/devices"
NOT_KNOWN: Mapping[str, int | None] = {}
_FEW = 4
_ORDER = list(HolderKind)


def read_holders(
    kernel: Reader, functions: Sequence[Function], inventory: Inventory, processes: Processes | None = None
) -> Holders:
    """Who holds the functions, and the live VFs of those. `processes` may have been begun before the inventory."""
    processes = processes or Processes(kernel)
    looked_at = [(function, read_below(kernel, function)) for function in _with_vfs(functions, inventory)]
    kept = _Kept(kernel)
    found = [holder for function, below in looked_at for holder in kept.holders(function, below)]
    running = processes.results()
    found += _processes(kernel, _Ways.to_functions(kernel, looked_at), running.processes)
    taken = {holder.address for holder in found if holder.pid is not None}
    free = [f for f, _ in looked_at if f.on_vfio and f.address not in taken and f.iommu_group is not None]
    found += _open_groups(kernel, ((f.address, f.iommu_group or 0) for f in free), running.processes)
    found += _vfs(functions, inventory, found)
    found.sort(key=lambda holder: (holder.address.order, _ORDER.index(holder.kind), holder.pid or 0, holder.path))
    asked = tuple(function.address for function in functions)
    return Holders(devices=asked, holders=tuple(found), read=running.read, unread=running.unread, hidden=running.hidden)


def read_mdev_holders(
    kernel: Reader, mdevs: Sequence[Uuid], processes: Processes, known: Mapping[str, int | None] = NOT_KNOWN
) -> Holders:
    """Who holds mediated devices; those that are not there are held by nobody.

    `known`: the groups of those whose removal has begun, which no bus shows any more.
    """
    links = {mdev: number_in(link_name(kernel, f"{_MDEVS}/{mdev}/iommu_group")) for mdev in mdevs}
    groups = {mdev: known.get(mdev) if group is None else group for mdev, group in links.items()}
    ways = _Ways.to_mdevs(kernel, groups)
    running = processes.results()
    found = list(_processes(kernel, ways, running.processes))
    taken = {holder.address for holder in found}
    free = [(mdev, group) for mdev, group in groups.items() if group is not None and mdev not in taken]
    found += _open_groups(kernel, free, running.processes)
    found.sort(key=lambda holder: (holder.address.order, _ORDER.index(holder.kind), holder.pid or 0, holder.path))
    return Holders(
        devices=tuple(mdevs), holders=tuple(found), read=running.read, unread=running.unread, hidden=running.hidden
    )


def perhaps_open(
    kernel: Reader, mdevs: Sequence[Uuid], known: Mapping[str, int | None] = NOT_KNOWN
) -> tuple[Uuid, ...]:
    """Those of the mediated devices that somebody may have open: the kernel lets nobody open a group twice.

    To ask it takes less than a search of all processes, for a few of them.
    """
    if len(mdevs) > _FEW:
        return tuple(mdevs)
    groups = ((mdev, number_in(link_name(kernel, f"{_MDEVS}/{mdev}/iommu_group"))) for mdev in mdevs)
    return tuple(mdev for mdev, group in groups if not _is_free(kernel, known.get(mdev) if group is None else group))


def _is_free(kernel: Reader, group: int | None) -> bool:
    if group is None:
        return False
    try:
        return kernel.viable(group)
    except KernelRefused:
        return False


def _with_vfs(functions: Sequence[Function], inventory: Inventory) -> list[Function]:
    """The functions and their live VFs, each once."""
    found = {function.address: function for function in functions}
    for function in functions:
        found |= {vf: inventory.by_address[vf] for vf in function.virtfns if vf in inventory.by_address}
    return list(found.values())


# -- devices and the kernel ------------------------------------------------------------------------------


class _Kept:
    """What of the kernel's own uses a function."""

    def __init__(self, kernel: Reader) -> None:
        self._kernel, self._disks, self._network = kernel, Disks(kernel), Network(kernel)

    def holders(self, function: Function, below: Sequence[Descendant]) -> Iterator[Holder]:
        yield from self._disks.holders(function.address, below)
        yield from self._network.holders(function.address, below)
        yield from attachments.mdev_holders(function, below)
        yield from attachments.vgpu_holders(self._kernel, function)
        yield from attachments.console_holders(self._kernel, function, below)
        yield from attachments.module_holders(self._kernel, function)


def _vfs(functions: Iterable[Function], inventory: Inventory, found: Iterable[Holder]) -> list[Holder]:
    """VFs that a guest may have, or that anybody holds."""
    held = {holder.address: holder for holder in found if holder.refuses}
    on_vfio = {function.address: function.driver for function in inventory.functions if function.on_vfio}
    return [
        Holder(
            address=function.address,
            kind=HolderKind.VF,
            name=vf,
            path=f"{PCI_DEVICES}/{vf}",
            how=f"a VF on {on_vfio[vf]}" if vf in on_vfio else f"a VF, held by {held[vf].name}",
            remedy=f"release its VFs first: vfioctl holders {vf}",
        )
        for function in functions
        for vf in function.virtfns
        if vf in held or vf in on_vfio
    ]


# -- processes -------------------------------------------------------------------------------------------


class _Ways:
    """What leads to each function or mdev: device numbers, and the names by which a VMM calls it."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[Subject]] = {}
        self._names: dict[str, Subject] = {}

    @classmethod
    def to_mdevs(cls, kernel: Reader, groups: Mapping[Uuid, int | None]) -> Self:
        """To mediated devices, each of which has a group of its own."""
        ways = cls()
        for mdev, group in groups.items():
            ways._names[mdev] = mdev
            cdevs = (f"/dev/vfio/devices/{name}" for name in names_in(kernel, f"{_MDEVS}/{mdev}/vfio-dev"))
            for node in (f"/dev/vfio/{group}", *cdevs):
                if number := number_of(kernel, node):
                    ways._numbers.setdefault(number, []).append(mdev)
        return ways

    @classmethod
    def to_functions(cls, kernel: Reader, looked_at: Iterable[tuple[Function, Sequence[Descendant]]]) -> Self:
        """To functions, and to what lies below them."""
        ways = cls()
        ways._lead_to(kernel, looked_at)
        return ways

    def _lead_to(self, kernel: Reader, looked_at: Iterable[tuple[Function, Sequence[Descendant]]]) -> None:
        known = {function.address: (function, below) for function, below in looked_at}
        for address, (_, below) in known.items():
            self._names[address] = address
            self._names |= {d.path.rpartition("/")[2]: address for d in below if d.subsystem == "mdev"}
        # in workers that can be left behind: NVIDIA's files in /proc are read under the locks of its driver
        told = {str(address): plain(function, below) for address, (function, below) in known.items()}
        answers = kernel.survey(NumbersReader, told, args=(told,))
        for text, numbers in answers:
            found = own_numbers(known[PciAddress(text)][1]) if isinstance(numbers, Unanswered) else numbers
            for number in found:
                self._numbers.setdefault(number, []).append(PciAddress(text))

    def of(self, process: Process) -> Mapping[tuple[Subject, str], Sequence[str]]:
        """By function and path, how the process holds it; without a path what only its command line tells."""
        found: dict[tuple[Subject, str], dict[str, None]] = {}
        for node in process.nodes:
            named = self._names.get(device_at(node.device))
            for address in [*self._numbers.get(node.number, ()), *([named] if named else [])]:
                found.setdefault((address, node.path), {})[node.how] = None
        if process.readable:
            return {key: [*hows] for key, hows in found.items()}  # a command line may tell of what was unplugged since
        open_ones = {address for address, _ in found}
        for name in process.given:
            if (address := self._names.get(name)) and address not in open_ones:
                found[address, ""] = {"command line": None}
        return {key: [*hows] for key, hows in found.items()}


def _processes(kernel: Reader, ways: _Ways, running: Iterable[Process]) -> Iterator[Holder]:
    held = {process: found for process in running if (found := ways.of(process))}
    known = identities(kernel, [process.pid for process in held])
    for process, found in held.items():
        who = known[process.pid]
        for (address, path), hows in found.items():
            yield Holder(
                address=address,
                kind=HolderKind.GUEST if process.is_vmm or who.belongs.guest else HolderKind.PROCESS,
                pid=int(process.pid),
                name=process.name,
                user=who.user,
                unit=who.belongs.unit,
                in_session=who.belongs.user_unit or (who.belongs.unit or "").startswith("session-"),
                container=who.belongs.container,
                pod=who.belongs.pod,
                guest=who.belongs.guest or (who.guest if process.is_vmm else None),
                path=path,
                how=", ".join(hows),
                remedy=remedy(process, who),
            )


def _open_groups(kernel: Reader, groups: Iterable[tuple[Subject, int]], running: Sequence[Process]) -> Iterator[Holder]:
    """Groups that the kernel calls busy though no process was found: it attributes no open VFIO device to a group."""
    suspects = [p for p in running if any(node.path == VFIO_DEVICE and not node.device for node in p.nodes)]
    names = ", ".join(f"{process.name} (pid {process.pid})" for process in suspects)
    for address, group in groups:
        if _is_busy(kernel, group):
            yield Holder(
                address=address,
                kind=HolderKind.VFIO_GROUP,
                name=f"group {group}",
                path=f"/dev/vfio/{group}",
                how="open, the kernel says",
                remedy=f"end the guest that has it; with VFIO devices open: {names}" if names else "run it as root",
            )


def _is_busy(kernel: Reader, group: int) -> bool:
    try:
        kernel.viable(group)
    except KernelRefused as error:
        return error.symbol == "EBUSY"
    return False
