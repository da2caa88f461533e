"""The rows of the screen of devices: NUMA nodes, cards, functions, VFs. May not read the host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from vfioctl.binding.model.conditions import GPU_SERVICES
from vfioctl.console.words import counted, plain
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.usage import Usage
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.tui.model.names import Names
from vfioctl.tui.model.sheet import Cell, Column, Row, Tone, cell, heading
from vfioctl.units import format_cpu_list, format_size
from vfioctl.vgpu.model.vgpu import VgpuCard
from vfioctl.vgpu.render.listing import count_words

COLUMNS = (
    Column("ADDRESS"),
    Column("GPU"),
    Column("GROUP", right=True, rank=4),
    Column("DRIVER", most=16),
    Column("GUEST"),
    Column("OWNER", rank=1, most=24, least=8),
    Column("HELD BY", rank=2, most=28, least=8),
    Column("USE", rank=3),
    Column("VGPUS", rank=5),
    Column("NAME"),
)
_EMPTY = Cell("")
_PARTS = {HolderKind.VF: "VF", HolderKind.MDEV: "vGPU", HolderKind.VGPU: "vGPU"}
"""Holders that are parts of the device itself."""
VFS = "vfs:"
"""Begins the key of the row that stands for all VFs of a PF."""
_TONES = {"ready": Tone.GOOD, "no": Tone.DIM, "unknown": Tone.WARNING}


class DeviceRows:
    """Makes the rows of one overview."""

    def __init__(self, overview: Overview, names: Names, *, everything: bool = False) -> None:
        """`everything`: also functions that are no GPUs and do not travel with one."""
        self._overview, self._inventory, self._names, self._everything = overview, overview.inventory, names, everything

    def rows(self) -> Iterator[Row]:
        """Yield all rows, each below its parent."""
        inventory = self._inventory
        if problem := self._overview.missing.get(Part.HOLDERS):
            yield heading("missing:holders", f"Holders are unknown: {problem}", tone=Tone.WARNING)
        sections: dict[int | None, list[Row]] = {}
        seen: set[PciAddress] = set()
        for function in self._leaders():
            if function.address not in seen:
                rows = sections.setdefault(function.numa_node, [])
                rows += self._card(function, f"node:{function.numa_node}", seen)
        for number in sorted(sections, key=lambda number: (number is None, number)):
            yield heading(f"node:{number}", phrases.node_heading(number, inventory), is_open=True)
            yield from sections[number]
        if inventory.unread:
            yield heading("unread", phrases.UNREAD, tone=Tone.WARNING, is_open=True)
            for address, why in inventory.unread.items():
                yield self._row(str(address), "unread", name=cell(f"not read: {why}", Tone.WARNING))
        if not (sections or inventory.unread):
            yield heading("none", f"No GPU among {counted(len(inventory.functions), 'function')}.")

    def _leaders(self) -> Iterator[Function]:
        """Yield what begins a card's rows: its first GPU."""
        for gpu in self._inventory.ordered_gpus:
            if gpu.physfn not in self._inventory.by_address:
                yield gpu
        if self._everything:
            yield from (f for f in self._inventory.functions if f.physfn not in self._inventory.by_address)

    def _card(self, leader: Function, parent: str, seen: set[PciAddress]) -> Iterator[Row]:
        inventory = self._inventory
        own = inventory.card_of(leader.address)
        others = sorted(leader.companions, key=lambda address: address not in own) if leader.is_gpu else []
        members = [m for a in others if a not in seen and (m := inventory.by_address.get(a)) is not None]
        below = bool(members or self._virtual(leader))
        seen.add(leader.address)
        yield self._function(leader, parent, depth=0, below=below)
        yield from self._vfs(leader, seen)
        for member in members:
            seen.add(member.address)
            yield self._function(member, leader.address, depth=1, below=bool(self._virtual(member)))
            yield from self._vfs(member, seen, depth=2)

    def _virtual(self, function: Function) -> list[Function]:
        return [vf for a in function.virtfns if (vf := self._inventory.by_address.get(a)) is not None]

    def _vfs(self, pf: Function, seen: set[PciAddress], depth: int = 1) -> Iterator[Row]:
        virtual = self._virtual(pf)
        if not virtual:
            return
        ready = sum(map(self._inventory.is_ready, virtual))
        drivers = {vf.driver for vf in virtual}
        groups = format_cpu_list(vf.iommu_group for vf in virtual if vf.iommu_group is not None)
        state = "ready" if ready == len(virtual) else f"{ready} ready" if ready else "no"
        yield self._row(
            f"{VFS}{pf.address}",
            pf.address,
            first=cell(counted(len(virtual), "VF")),
            depth=depth,
            below=True,
            group=cell(groups if len(groups) < 10 else ""),
            driver=_driver(virtual[0]) if len(drivers) == 1 else cell(counted(len(drivers), "driver")),
            guest=cell(state, _TONES.get(state, Tone.GOOD)),
            name=cell(f"virtual functions of {pf.address}", Tone.DIM),
        )
        for vf in virtual:
            seen.add(vf.address)
            yield self._function(vf, f"{VFS}{pf.address}", depth=depth + 1)

    def _function(self, function: Function, parent: str, *, depth: int, below: bool = False) -> Row:
        inventory, address = self._inventory, function.address
        state = phrases.guest_state(function, inventory).plain
        name = self._names.of(function)
        if function.vgpu_type:
            name = f"vGPU {function.vgpu_type}  {name}"
        return self._row(
            address,
            parent,
            depth=depth,
            below=below,
            gpu=cell(inventory.gpu_names.get(address, "")),
            group=cell(phrases.group_name(function.iommu_group)),
            driver=_driver(function),
            guest=cell(state, _TONES.get(state, Tone.BAD)),
            owner=cell(function.owner or self._owner_of_parts(function)),
            held=self._held(function),
            use=cell(usage_words(self._overview.usage.get(address))),
            vgpus=cell(self._capacity(function)),
            name=cell(name, Tone.PLAIN if function.is_gpu else Tone.DIM),
            hidden=f"{function.vendor_id}:{function.device_id} {function.claim or ''}",
        )

    def _row(  # noqa: PLR0913 - one for each column
        self,
        key: str,
        parent: str,
        *,
        first: Cell | None = None,
        depth: int = 0,
        below: bool = False,
        gpu: Cell = _EMPTY,
        group: Cell = _EMPTY,
        driver: Cell = _EMPTY,
        guest: Cell = _EMPTY,
        owner: Cell = _EMPTY,
        held: Cell = _EMPTY,
        use: Cell = _EMPTY,
        vgpus: Cell = _EMPTY,
        name: Cell,
        hidden: str = "",
    ) -> Row:
        cells = (first or cell(key), gpu, group, driver, guest, owner, held, use, vgpus, name)
        return Row(key, cells, depth, parent, is_open=True if below else None, hidden=hidden)

    def _owner_of_parts(self, function: Function) -> str:
        owners = {self._inventory.reserved[mdev].owner for mdev in function.mdevs if mdev in self._inventory.reserved}
        return counted(len(owners), "owner") if len(owners) > 1 else "".join(owners)

    @cached_property
    def _holders(self) -> Mapping[str, Sequence[Holder]]:
        holders = defaultdict[str, list[Holder]](list)
        for holder in self._overview.holders.refusing:
            holders[holder.address].append(holder)
        return holders

    def _held(self, function: Function) -> Cell:
        return holders_cell([h for name in (function.address, *function.mdevs) for h in self._holders.get(name, ())])

    @cached_property
    def _cards(self) -> Mapping[str, VgpuCard]:
        return {card.id: card for card in self._overview.vgpus.cards}

    def _capacity(self, function: Function) -> str:
        card = self._cards.get(function.address)
        return "" if card is None else capacity_words(card)


def _driver(function: Function) -> Cell:
    name = function.driver
    return cell(name, Tone.GOOD if function.on_vfio else Tone.PLAIN) if name else cell("none", Tone.DIM)


def holders_cell(holders: Sequence[Holder]) -> Cell:
    """`python 4711 +2`, `16 VFs`: the first holder, and how many more. Services that bind can stop are last."""
    if not holders:
        return Cell("")
    parts = Counter(holder.kind for holder in holders if holder.kind in _PARTS)
    others = sorted((h for h in holders if h.kind not in _PARTS), key=lambda h: h.unit in GPU_SERVICES)
    if not others:
        return cell(" ".join(counted(number, _PARTS[kind]) for kind, number in parts.items()), Tone.WARNING)
    first = others[0]
    who = f"guest {first.guest}" if first.guest else first.short
    more = len({(holder.pid, holder.name) for holder in others}) + len(parts) - 1
    return cell(f"{who} +{more}" if more else who, Tone.WARNING)


def capacity_words(card: VgpuCard) -> str:
    """`2, 6 more`: how many vGPUs a card has, and how many more of the type with most room."""
    there = sum(parent.instances for parent in card.parents)
    most = max((kind.available for kind in card.types), key=lambda count: count.at_least, default=None)
    if most is None:
        return str(there or "")
    return f"{there}, {count_words(most)} more" if count_words(most) != "?" else f"{there}, ? more"


def usage_words(usage: Usage | None) -> str:
    """`23% 45C 3.1/80 GiB`."""
    if usage is None:
        return ""
    used, total = usage.memory_used_bytes, usage.memory_total_bytes
    parts = (
        "" if usage.utilisation_percent is None else f"{usage.utilisation_percent}%",
        "" if usage.temperature_celsius is None else f"{usage.temperature_celsius}C",
        "" if used is None else f"{format_size(used)}{'' if total is None else f' of {format_size(total)}'}",
    )
    return plain(" ".join(filter(None, parts)))
