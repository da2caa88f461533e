"""Renders vGPU types and free capacity by card, the list of vGPUs, the page of one, and the results of a change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Cell, Column, Layout, fact_grid, note_lines, table
from vfioctl.core.reservations import Reservation
from vfioctl.units import format_size
from vfioctl.vgpu.model.vgpu import (
    Count,
    Definition,
    Dialect,
    Forecast,
    Left,
    Sharing,
    SizeMode,
    Vgpu,
    VgpuCard,
    VgpuState,
    VgpuType,
    VgpuWarning,
)

_INTERFACES = {
    Dialect.MDEV: "mdev",
    Dialect.VENDOR: "NVIDIA vendor VFIO",
    Dialect.SRIOV: "SR-IOV",
    Dialect.XE: "SR-IOV of xe",
}
_PROFILE_COLUMNS = ("exec_quantum_ms", "preempt_timeout_us", "sched_priority", "vram_quota")
_BAD = (VgpuState.ZOMBIE, VgpuState.ORPHAN, VgpuState.WEDGED)
_VGPU_COLUMNS = (
    Column("VGPU"),
    Column("PROFILE"),
    Column("ON"),
    Column("GROUP", right=True, optional=True),
    Column("NODE", optional=True),
    Column("MDEVCTL", optional=True),
    Column("STATE"),
    Column("OWNER"),
)


def vgpu_types_page(
    cards: Sequence[VgpuCard],
    titles: Mapping[str, str],
    forecasts: Sequence[Forecast],
    warnings: Iterable[VgpuWarning],
    *,
    width: int,
) -> RenderableType:
    """The types by card. `titles`: product names of the cards, by address. `width`: of the terminal, in columns."""
    by_card = {forecast.card: forecast for forecast in forecasts}
    parts: list[RenderableType] = []
    for card in cards:
        parts += [Text()] if parts else []
        parts += _card(card, titles.get(card.id, ""), by_card.get(card.id), width)
    return Stack(*(parts or [Text("No card here offers vGPUs.")]), *note_lines(_warnings(warnings)))


def vgpu_table(
    vgpus: Sequence[Vgpu], warnings: Iterable[VgpuWarning], reservations: Iterable[Reservation] = (), *, width: int
) -> RenderableType:
    """The list of vGPUs. `width`: of the terminal, in columns."""
    rows = [_vgpu_row(vgpu) for vgpu in vgpus]
    lines = table(_VGPU_COLUMNS, rows, width) if rows else [Text("There are no vGPUs.")]
    reserved = (words.plain(f"{reservation.words}.") for reservation in reservations)
    return Stack(*lines, *note_lines([*_states(vgpus), *_warnings(warnings), *reserved]))


def vgpu_page(vgpu: Vgpu, card_title: str) -> RenderableType:
    """The page of one vGPU, with all its facts. `card_title`: the product name of its card."""
    title = "  ".join(filter(None, (vgpu.id, words.plain(vgpu.profile or vgpu.type))))
    facts = Padding.indent(fact_grid(_facts(vgpu, card_title), least=18), 2)
    return Stack(Text(title, style="bold"), facts, *note_lines(_states([vgpu])))


def _card(card: VgpuCard, title: str, forecast: Forecast | None, width: int) -> Iterator[RenderableType]:
    node = "" if card.numa_node is None else f"NUMA node {card.numa_node}"
    yield Text("  ".join(filter(None, (card.id, words.plain(title), node))), style="bold")
    mode = "" if card.size_mode is SizeMode.UNKNOWN else f"{card.size_mode} mode"
    yield Text(", ".join(filter(None, (_INTERFACES[card.dialect], _places(card), _created(card), mode))))
    columns = (
        Column("PROFILE"),
        Column("MEMORY", right=True, optional=True),
        Column("HEADS", right=True, optional=True),
        Column("RESOLUTION", right=True, optional=True),
        Column("MAX", right=True, optional=True),
        Column("THERE", right=True),
        Column("FREE", right=True),
        *([Column("AFTER", right=True)] if forecast else []),
        Column("TYPE"),
    )
    rows = [_type_row(kind, forecast) for kind in card.types]
    layout = Layout(columns, rows, width - 2)
    if rows:
        yield from (Padding.indent(line, 2) for line in (*layout.header(), *layout.lines(rows)))
    yield from _profiles(card, width)
    yield from note_lines(_card_notes(card, forecast))


def _places(card: VgpuCard) -> str:
    """`on 16 VFs, 14 of them free`."""
    if card.sharing is Sharing.VFS or [parent.name for parent in card.parents] == [card.id]:
        return ""
    free = sum(any(parent.offers.values()) for parent in card.parents)
    return f"on {words.counted(len(card.parents), 'VF')}, {free or 'none'} of them open to more"


def _created(card: VgpuCard) -> str:
    count = sum(parent.instances for parent in card.parents)
    return f"{words.counted(count, 'vGPU')} there" if count else "no vGPUs yet"


def _type_row(kind: VgpuType, forecast: Forecast | None) -> tuple[Cell, ...]:
    return (
        words.plain(kind.profile or kind.name or kind.id),
        format_size(kind.framebuffer_bytes) if kind.framebuffer_bytes else "",
        "" if kind.heads is None else str(kind.heads),
        words.plain(kind.max_resolution),
        "" if kind.max_instances is None else str(kind.max_instances),
        str(kind.existing),
        Text(count_words(kind.available), style="green" if kind.available.at_least else ""),
        *([count_words(forecast.available[kind.id])] if forecast else []),
        words.plain(kind.id),
    )


def count_words(count: Count) -> str:
    """`4` if exact; `1-4` for at least one and at most four; `1 or more` without an upper bound; `?` if unknown."""
    if count.is_exact:
        return str(count.at_least)
    if count.at_most is None:
        return f"{count.at_least} or more" if count.at_least else "?"
    return f"{count.at_least}-{count.at_most}"


def _profiles(card: VgpuCard, width: int) -> Iterator[RenderableType]:
    shown = [name for name in _PROFILE_COLUMNS if any(name in profile.values for profile in card.profiles)]
    if not shown:
        return
    columns = (Column("PROFILE OF"), *(Column(name) for name in shown))
    rows = [(profile.of, *(words.plain(profile.values.get(name, "")) for name in shown)) for profile in card.profiles]
    yield Text()
    yield from (Padding.indent(line, 2) for line in table(columns, rows, width - 2))


def _card_notes(card: VgpuCard, forecast: Forecast | None) -> Iterator[str]:
    ranges = any(not kind.available.is_exact for kind in card.types)
    if card.sharing is Sharing.SIZES and card.size_mode is SizeMode.UNKNOWN and (ranges or forecast):
        yield (
            "The kernel does not say whether the card takes several sizes at a time. If not, as is the default, the "
            "first vGPU leaves room for its own size only."
        )
    if card.sharing is Sharing.POOL and len(card.types) > 1:
        yield f"All types share one stock of {words.listed(card.types[0].takes)}."
    if card.sharing is Sharing.UNKNOWN and len(card.types) > 1:
        yield "How its types share the device is not known: creating one may leave less room for the others, or none."
    if card.sharing is Sharing.VFS and any(parent.instances for parent in card.parents):
        yield "VFs are created together: more of them only after these are gone."
    elif card.sharing is Sharing.VFS:
        yield "VFs are created together, and the driver may create fewer than it is asked for."
    if any(parent.unknown for parent in card.parents):
        unread = [f"{parent.name}: {name}: {why}" for parent in card.parents for name, why in parent.unknown.items()]
        yield words.plain(f"unknown: {'; '.join(unread[:3])}{f', and {len(unread) - 3} more' if unread[3:] else ''}")
    if forecast:
        names = {kind.id: kind.profile or kind.id for kind in card.types}
        created = words.listed(f"{number} {names.get(kind, kind)}" for kind, number in forecast.made.items())
        certain = "" if forecast.certain else ", if all of that fits: nothing says that it does not"
        verb = "is" if sum(forecast.made.values()) == 1 else "are"
        yield words.plain(f"AFTER is what remains once {created} {verb} created{certain}.")


def _vgpu_row(vgpu: Vgpu) -> tuple[Cell, ...]:
    return (
        words.plain(vgpu.id),
        words.plain(vgpu.profile or vgpu.type or "-"),
        words.plain(vgpu.parent),
        "" if vgpu.iommu_group is None else str(vgpu.iommu_group),
        vgpu.vfio_cdev or vgpu.vfio_group or "",
        words.plain(vgpu.definition.start) if vgpu.definition else "",
        Text(vgpu.state, style="bold red" if vgpu.state in _BAD else ""),
        words.plain(vgpu.owner),
    )


def _states(vgpus: Iterable[Vgpu]) -> Iterator[str]:
    for vgpu in vgpus:
        if vgpu.state is VgpuState.ZOMBIE:
            yield f"{vgpu.id} was removed while it was open: it uses its share of the card until it is closed."
        if vgpu.state is VgpuState.WEDGED:
            why = vgpu.unknown.get("state", "a write never returned")
            yield f"{vgpu.id} is wedged: {words.plain(why)}; vfioctl recover says what became of it."
        if vgpu.state is VgpuState.ORPHAN:
            yield f"{vgpu.id} has lost its driver: it is unusable, and can only be removed."


def _facts(vgpu: Vgpu, title: str) -> Iterator[tuple[str, str | None]]:
    yield "type", " ".join(filter(None, (vgpu.type, vgpu.type_name)))
    yield "state", vgpu.state
    yield "owner", vgpu.owner
    yield "interface", _INTERFACES[vgpu.dialect]
    yield "card", f"{vgpu.card} {title}"
    yield "created on", vgpu.parent
    yield "driver", vgpu.driver
    yield "IOMMU group", None if vgpu.iommu_group is None else str(vgpu.iommu_group)
    yield "VFIO group node", vgpu.vfio_group
    yield "VFIO device node", vgpu.vfio_cdev
    yield "NUMA node", words.UNKNOWN if vgpu.numa_node is None else str(vgpu.numa_node)
    yield from vgpu.attributes.items()
    if defined := vgpu.definition:
        yield "mdevctl", f"{defined.path}, started {'at boot' if defined.start == 'auto' else 'by hand'}"
        if vgpu.type and defined.type != vgpu.type:
            yield "defined as", defined.type
        yield from ((f"mdevctl {name}", value) for name, value in defined.attributes)
    yield from ((f"{name} (unread)", why) for name, why in vgpu.unknown.items())


def _warnings(warnings: Iterable[VgpuWarning]) -> Iterator[str]:
    for warning in warnings:
        yield words.plain(f"unknown: {warning.subject}: {warning.text}")


_WIDE = 1000
_COLUMNS = (Column(""), Column(""), Column("", optional=True), Column("", optional=True), Column(""))


def vgpu_lines(vgpus: Sequence[Vgpu]) -> Iterator[str]:
    """One line for each vGPU: id, type, parent, IOMMU group, and the node that a guest opens."""
    rows = [_row(vgpu) for vgpu in vgpus]
    return (line.plain.rstrip() for line in Layout(_COLUMNS, rows, _WIDE).flowing(rows))


def left_lines(left: Iterable[Left]) -> Iterator[str]:
    """One line for each card and type: `0000:41:00.0 has room for 2 more of L40S-12Q`."""
    for change in left:
        room = "no room for more" if change.available.at_most == 0 else f"room for {count_words(change.available)} more"
        yield words.plain(f"{change.card} has {room} of {change.profile or change.type}")


def defined_lines(defined: Mapping[str, Definition]) -> Iterator[str]:
    """One line for each removed vGPU that is still defined, and one with the command that removes the definition."""
    from vfioctl.vgpu.model.persistent import still_defined  # which imports pydantic, and listings need none

    for uuid, definition in defined.items():
        yield words.plain(f"{still_defined(uuid, definition)}; to remove that too:")
        yield f"vfioctl vgpu remove {uuid} --definition --foreign"


def _row(vgpu: Vgpu) -> tuple[str, str, str, str, str]:
    group = "" if vgpu.iommu_group is None else f"group {vgpu.iommu_group}"
    node = vgpu.vfio_cdev or vgpu.vfio_group or ""
    if not node and vgpu.dialect in (Dialect.SRIOV, Dialect.XE):
        node = words.plain(vgpu.driver or "no driver")
    if node == vgpu.vfio_group:
        group = ""  # its node is named after it
    return (vgpu.id, words.plain(vgpu.profile or vgpu.type), vgpu.parent if vgpu.parent != vgpu.id else "", group, node)
