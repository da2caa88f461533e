"""Finds the holders of functions: processes, guests, disks and interfaces in use, the kernel. May not write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from vfioctl.errors import KernelRefused
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.inventory.probe.attachments import KernelHolders
from vfioctl.inventory.probe.nodes import NumbersReader, own_numbers, plain, read_below
from vfioctl.inventory.probe.owners import device_at
from vfioctl.inventory.probe.processes import Process, Processes, Running, identities, remedy
from vfioctl.kernel.host_paths import MDEV_DEVICES
from vfioctl.kernel.lenient import link_name, names_in, number_in, number_of
from vfioctl.kernel.protocol import PCI_DEVICES, VFIO_DEVICE, Descendant, Reader, Unanswered
from vfioctl.units import Uuid

NOT_KNOWN: Mapping[str, int | None] = {}
_FEW = 4
_ORDER = list(HolderKind)


def read_holders(
    kernel: Reader, functions: Sequence[Function], inventory: Inventory, processes: Processes | None = None
) -> Holders:
    """Return the holders of the functions and of their live VFs. `processes`: a scan that was started earlier."""
    processes = processes or Processes(kernel)
    looked_at = [(function, read_below(kernel, function)) for function in _with_vfs(functions, inventory)]
    kernel_holders = KernelHolders(kernel)
    holders = [holder for function, below in looked_at for holder in kernel_holders.holders(function, below)]
    running = processes.results()
    holders += _processes(kernel, _DeviceIndex.to_functions(kernel, looked_at), running.processes)
    taken = {holder.address for holder in holders if holder.pid is not None}
    free = [f for f, _ in looked_at if f.serves_guests and f.address not in taken and f.iommu_group is not None]
    holders += _open_groups(kernel, ((f.address, f.iommu_group or 0) for f in free), running.processes)
    holders += _vfs(functions, inventory, holders)
    holders += _suspected(kernel, [function.address for function, _ in looked_at], holders, running.suspects)
    asked = tuple(function.address for function in functions)
    return _sorted_holders(asked, holders, running)


def read_mdev_holders(
    kernel: Reader, mdevs: Sequence[Uuid], processes: Processes, known: Mapping[str, int | None] = NOT_KNOWN
) -> Holders:
    """Return the holders of mediated devices; devices that do not exist have none.

    `known`: IOMMU groups of devices already removed from their bus.
    """
    links = {mdev: number_in(link_name(kernel, f"{MDEV_DEVICES}/{mdev}/iommu_group")) for mdev in mdevs}
    groups = {mdev: known.get(mdev) if group is None else group for mdev, group in links.items()}
    index = _DeviceIndex.to_mdevs(kernel, groups)
    running = processes.results()
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


def perhaps_open(
    kernel: Reader, mdevs: Sequence[Uuid], known: Mapping[str, int | None] = NOT_KNOWN
) -> tuple[Uuid, ...]:
    """Return the mediated devices that a process may have open: a VFIO group can be opened only once.

    For a few devices, trying to open the groups is faster than scanning all processes.
    """
    if len(mdevs) > _FEW:
        return tuple(mdevs)
    groups = ((mdev, number_in(link_name(kernel, f"{MDEV_DEVICES}/{mdev}/iommu_group"))) for mdev in mdevs)
    return tuple(mdev for mdev, group in groups if not is_free(kernel, known.get(mdev) if group is None else group))


def is_free(kernel: Reader, group: int | None) -> bool:
    """Return whether nobody has the group open: VFIO lets it be opened only once."""
    if group is None:
        return False
    try:
        return kernel.viable(group)
    except KernelRefused:
        return False


def _with_vfs(functions: Sequence[Function], inventory: Inventory) -> list[Function]:
    """Return the functions and their live VFs, each once."""
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


# -- processes -------------------------------------------------------------------------------------------


class _DeviceIndex:
    """An index of functions and mdevs by device number and by their name on a VMM's command line."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[Subject]] = {}
        self._names: dict[str, Subject] = {}

    @classmethod
    def to_mdevs(cls, kernel: Reader, groups: Mapping[Uuid, int | None]) -> Self:
        """Return an index of mediated devices, each of which has its own group."""
        index = cls()
        for mdev, group in groups.items():
            index._names[mdev] = mdev
            cdevs = (f"/dev/vfio/devices/{name}" for name in names_in(kernel, f"{MDEV_DEVICES}/{mdev}/vfio-dev"))
            for node in (f"/dev/vfio/{group}", *cdevs):
                if number := number_of(kernel, node):
                    index._numbers.setdefault(number, []).append(mdev)
        return index

    @classmethod
    def to_functions(cls, kernel: Reader, looked_at: Iterable[tuple[Function, Sequence[Descendant]]]) -> Self:
        """Return an index of functions and the devices below them."""
        index = cls()
        index._lead_to(kernel, looked_at)
        return index

    def _lead_to(self, kernel: Reader, looked_at: Iterable[tuple[Function, Sequence[Descendant]]]) -> None:
        known = {function.address: (function, below) for function, below in looked_at}
        for address, (_, below) in known.items():
            self._names[address] = address
            self._names |= {d.path.rpartition("/")[2]: address for d in below if d.subsystem == "mdev"}
        # in workers, which may be abandoned: reading NVIDIA's files in /proc takes its driver's locks
        plain_data = {str(address): plain(function, below) for address, (function, below) in known.items()}
        answers = kernel.survey(NumbersReader, plain_data, args=(plain_data,))
        for text, numbers in answers:
            own = own_numbers(known[PciAddress(text)][1]) if isinstance(numbers, Unanswered) else numbers
            for number in own:
                self._numbers.setdefault(number, []).append(PciAddress(text))

    def of(self, process: Process) -> Mapping[tuple[Subject, str], Sequence[str]]:
        """Return how the process holds each function, by function and path; no path for a command line match."""
        devices: dict[tuple[Subject, str], dict[str, None]] = {}
        for node in process.nodes:
            named = self._names.get(device_at(node.device))
            for address in [*self._numbers.get(node.number, ()), *([named] if named else [])]:
                devices.setdefault((address, node.path), {})[node.how] = None
        if not process.unread:
            return {key: [*hows] for key, hows in devices.items()}  # a command line may name an unplugged device
        open_ones = {address for address, _ in devices}
        for name in process.given:
            if (address := self._names.get(name)) and address not in open_ones:
                devices[address, ""] = {"command line": None}
        return {key: [*hows] for key, hows in devices.items()}


def _processes(kernel: Reader, index: _DeviceIndex, running: Iterable[Process]) -> Iterator[Holder]:
    held = {process: nodes for process in running if (nodes := index.of(process))}
    known = identities(kernel, [process.pid for process in held])
    for process, nodes in held.items():
        who = known[process.pid]
        for (address, path), hows in nodes.items():
            yield Holder(
                address=address,
                kind=HolderKind.GUEST if process.is_vmm or who.belongs.guest else HolderKind.PROCESS,
                pid=int(process.pid),
                name=process.name,
                user=who.user,
                unit=who.belongs.unit,
                in_session=who.in_session,
                container=who.belongs.container,
                pod=who.belongs.pod,
                guest=who.belongs.guest or (who.guest if process.is_vmm else None),
                path=path,
                how=", ".join(hows),
                remedy=remedy(process, who),
            )


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
                yield Holder(
                    address=address,
                    kind=HolderKind.UNREAD,
                    pid=int(process.pid),
                    name=process.name or who.name,
                    user=who.user,
                    unit=who.belongs.unit,
                    in_session=who.in_session,
                    container=who.belongs.container,
                    pod=who.belongs.pod,
                    guest=who.belongs.guest,
                    how=process.unread,
                    # one that the scan did not reach is no reason to end it
                    remedy=remedy(process, who) if process.name else f"see what it has open: lsof -p {process.pid}",
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
