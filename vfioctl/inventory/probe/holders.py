"""Finds the holders of functions: processes, guests, disks and interfaces in use, the kernel. May not write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.inventory.probe.attachments import KernelHolders
from vfioctl.inventory.probe.nodes import NumbersReader, own_numbers, plain, read_below
from vfioctl.inventory.probe.owners import device_at
from vfioctl.inventory.probe.processes import Identity, Process, Processes, Running, identities, remedy
from vfioctl.kernel.host_paths import MDEV_DEVICES
from vfioctl.kernel.lenient import link_name, names_in, number_in, number_of
from vfioctl.kernel.protocol import PCI_DEVICES, VFIO_DEVICE, Descendant, Reader, Unanswered
from vfioctl.units import Uuid

_FEW = 4
_ORDER = list(HolderKind)
_LookedAt = Iterable[tuple[Function, Sequence[Descendant]]]


def read_holders(kernel: Reader, functions: Sequence[Function], inventory: Inventory, processes: Processes) -> Holders:
    """Return the holders of the functions and of their live VFs."""
    looked_at = [(function, read_below(kernel, function)) for function in _with_vfs(functions, inventory)]
    kernel_holders = KernelHolders(kernel)
    holders = [holder for function, below in looked_at for holder in kernel_holders.holders(function, below)]
    running = processes.running
    holders += _processes(kernel, _index_of_functions(kernel, looked_at), running.processes)
    taken = {holder.address for holder in holders if holder.pid is not None}
    free = [f for f, _ in looked_at if f.serves_guests and f.address not in taken and f.iommu_group is not None]
    holders += _open_groups(kernel, ((f.address, f.iommu_group or 0) for f in free), running.processes)
    holders += _vfs(functions, inventory, holders)
    holders += _suspected(kernel, [function.address for function, _ in looked_at], holders, running.suspects)
    asked = tuple(function.address for function in functions)
    return _sorted_holders(asked, holders, running)


def read_device_numbers(kernel: Reader, functions: Sequence[Function]) -> Mapping[PciAddress, frozenset[str]]:
    """Return the numbers of the device files of each function, as `c 195:0`: see `nodes.device_numbers`."""
    looked_at = [(function, read_below(kernel, function)) for function in functions]
    numbers = _index_of_functions(kernel, looked_at).numbers
    return {f.address: frozenset(n for n, owners in numbers.items() if f.address in owners) for f in functions}


def read_mdev_holders(
    kernel: Reader, mdevs: Sequence[Uuid], processes: Processes, known: Mapping[str, int | None]
) -> Holders:
    """Return the holders of mediated devices. `known`: IOMMU groups of devices already removed from their bus."""
    links = {mdev: _group_of_mdev(kernel, mdev) for mdev in mdevs}
    groups = {mdev: known.get(mdev) if group is None else group for mdev, group in links.items()}
    index = _index_of_mdevs(kernel, groups)
    running = processes.running
    mdev_holders = list(_processes(kernel, index, running.processes))
    taken = {holder.address for holder in mdev_holders}
    free = [(mdev, group) for mdev, group in groups.items() if group is not None and mdev not in taken]
    mdev_holders += _open_groups(kernel, free, running.processes)
    mdev_holders += _suspected(kernel, mdevs, mdev_holders, running.suspects)
    return _sorted_holders(mdevs, mdev_holders, running)


def _sorted_holders(asked: Iterable[Subject], found: Iterable[Holder], running: Running) -> Holders:
    def order(holder: Holder) -> tuple[object, ...]:
        return holder.address.order, _ORDER.index(holder.kind), holder.pid or 0, holder.path

    return Holders(
        devices=tuple(asked),
        holders=tuple(sorted(found, key=order)),
        read=running.read,
        unread=running.unread,
        hidden=running.hidden,
        unknown=running.unknown,
    )


def _group_of_mdev(kernel: Reader, mdev: Uuid) -> int | None:
    return number_in(link_name(kernel, f"{MDEV_DEVICES}/{mdev}/iommu_group"))


def perhaps_open(kernel: Reader, mdevs: Sequence[Uuid]) -> tuple[Uuid, ...]:
    """Return the mediated devices that a process may have open. Of a few, asking is faster than scanning processes."""
    few = len(mdevs) <= _FEW
    return tuple(mdev for mdev in mdevs if not (few and is_free(kernel, _group_of_mdev(kernel, mdev))))


def is_free(kernel: Reader, group: int | None) -> bool:
    """Return whether nobody has the group open: VFIO lets it be opened only once."""
    if group is None:
        return False
    try:
        return kernel.viable(group)
    except KernelRefused:
        return False


def _with_vfs(functions: Sequence[Function], inventory: Inventory) -> list[Function]:
    by_address = {function.address: function for function in functions}
    for function in functions:
        by_address |= {vf: inventory.by_address[vf] for vf in function.virtfns if vf in inventory.by_address}
    return list(by_address.values())


def _vfs(functions: Iterable[Function], inventory: Inventory, found: Iterable[Holder]) -> list[Holder]:
    """Return the VFs that are on VFIO or have a holder."""
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


class _DeviceIndex(NamedTuple):
    """Functions and mdevs by device number, and by their name on a VMM's command line."""

    numbers: dict[str, list[Subject]]
    names: dict[str, Subject]

    def of(self, process: Process) -> Mapping[tuple[Subject, str], Sequence[str]]:
        """Return how the process holds each function, by function and path; no path for a command line match."""
        devices: dict[tuple[Subject, str], dict[str, None]] = {}
        for node in process.nodes:
            named = self.names.get(device_at(node.device))
            for address in [*self.numbers.get(node.number, ()), *([named] if named else [])]:
                devices.setdefault((address, node.path), {})[node.how] = None
        open_ones = {address for address, _ in devices}
        for name in process.given if process.unread else ():  # a command line may name an unplugged device
            if (address := self.names.get(name)) and address not in open_ones:
                devices[address, ""] = {"command line": None}
        return {key: [*hows] for key, hows in devices.items()}


def _index_of_mdevs(kernel: Reader, groups: Mapping[Uuid, int | None]) -> _DeviceIndex:
    """Return an index of mediated devices, each of which has its own group."""
    index = _DeviceIndex({}, {mdev: mdev for mdev in groups})
    for mdev, group in groups.items():
        cdevs = (f"/dev/vfio/devices/{name}" for name in names_in(kernel, f"{MDEV_DEVICES}/{mdev}/vfio-dev"))
        for node in (f"/dev/vfio/{group}", *cdevs):
            if number := number_of(kernel, node):
                index.numbers.setdefault(number, []).append(mdev)
    return index


def _index_of_functions(kernel: Reader, looked_at: _LookedAt) -> _DeviceIndex:
    known = {function.address: (function, below) for function, below in looked_at}
    index = _DeviceIndex({}, {address: address for address in known})
    for address, (_, below) in known.items():
        index.names.update({d.path.rpartition("/")[2]: address for d in below if d.subsystem == "mdev"})
    # in workers, which may be abandoned: reading NVIDIA's files in /proc takes its driver's locks
    plain_data = {str(address): plain(function, below) for address, (function, below) in known.items()}
    for text, numbers in kernel.survey(NumbersReader, plain_data, args=(plain_data,)):
        own = own_numbers(known[PciAddress(text)][1]) if isinstance(numbers, Unanswered) else numbers
        for number in own:
            index.numbers.setdefault(number, []).append(PciAddress(text))
    return index


def _processes(kernel: Reader, index: _DeviceIndex, running: Iterable[Process]) -> Iterator[Holder]:
    held = {process: nodes for process in running if (nodes := index.of(process))}
    known = identities(kernel, [process.pid for process in held])
    for process, nodes in held.items():
        who = known[process.pid]
        kind = HolderKind.GUEST if process.is_vmm or who.belongs.guest else HolderKind.PROCESS
        guest = who.belongs.guest or (who.guest if process.is_vmm else None)
        for (address, path), hows in nodes.items():
            yield _holder(process, who, address, kind, guest=guest, how=", ".join(hows), path=path)


def _suspected(
    kernel: Reader, devices: Sequence[Subject], found: Sequence[Holder], suspects: Sequence[Process]
) -> Iterator[Holder]:
    """Yield the processes that may have the devices open, except those that are known to."""
    known = {(holder.address, holder.pid) for holder in found}
    identified = identities(kernel, [process.pid for process in suspects]) if suspects else {}
    for process in suspects:
        who = identified[process.pid]
        for address in devices:
            if (address, int(process.pid)) not in known:
                suspect = _holder(process, who, address, HolderKind.UNREAD, guest=who.belongs.guest, how=process.unread)
                # one that the scan did not reach is no reason to end it
                look = f"see what it has open: lsof -p {process.pid}"
                yield suspect if process.name else replace(suspect, name=who.name, remedy=look)


def _holder(
    process: Process, who: Identity, address: Subject, kind: HolderKind, *, guest: str | None, how: str, path: str = ""
) -> Holder:
    return Holder(
        address=address,
        kind=kind,
        pid=int(process.pid),
        name=process.name,
        user=who.user,
        unit=who.belongs.unit,
        in_session=who.in_session,
        container=who.belongs.container,
        pod=who.belongs.pod,
        guest=guest,
        path=path,
        how=how,
        remedy=remedy(process, who),
    )


def _open_groups(kernel: Reader, groups: Iterable[tuple[Subject, int]], running: Sequence[Process]) -> Iterator[Holder]:
    """Yield busy groups without a known process: an open VFIO device does not show its group."""
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
