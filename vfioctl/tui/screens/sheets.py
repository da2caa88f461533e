"""Which sheet each screen shows, and the details of one of its rows. May call the library only for the details of a
claim, which read its device files: call it in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.words import counted, listed, plain
from vfioctl.doctor.model.result import DoctorDocument
from vfioctl.host import Host
from vfioctl.inventory.render.function import function_page
from vfioctl.inventory.render.holders import holders_page
from vfioctl.inventory.render.phrases import gpu_count, iommu_line
from vfioctl.overview.model.event import HostEvent
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.tui.data.extra import Found
from vfioctl.tui.model.names import Names
from vfioctl.tui.model.sheet import Column, Row, Sheet, Tone, View, arranged, heading
from vfioctl.tui.screens import kubelet, lists
from vfioctl.tui.screens.devices import COLUMNS, VFS, DeviceRows, capacity_words, usage_words
from vfioctl.vgpu.render.listing import vgpu_page

if TYPE_CHECKING:
    from vfioctl.core.change import JournalEntry
    from vfioctl.kubelet.model.status import Status

_COLUMNS: Mapping[View, tuple[Column, ...]] = {
    View.DEVICES: COLUMNS,
    View.CLAIMS: lists.CLAIMS,
    View.VGPUS: lists.VGPUS,
    View.DOMAINS: lists.DOMAINS,
    View.HISTORY: lists.HISTORY,
    View.LOG: lists.LOG,
    View.DOCTOR: lists.CHECKS,
    View.KUBELET: kubelet.COLUMNS,
}

_WHOLE = 76
"""A width in which the table of vGPU types is whole; the page scrolls."""


@dataclass(frozen=True)
class Known:
    """All that was read of the host by now."""

    overview: Overview
    names: Names
    changes: Found[tuple[JournalEntry, ...]] = field(default_factory=lambda: Found["tuple[JournalEntry, ...]"](()))
    checked: Found[DoctorDocument | None] = field(default_factory=lambda: Found[DoctorDocument | None](None))
    kubelet: Found[Status | None] = field(default_factory=lambda: Found["Status | None"](None))
    events: tuple[tuple[int, HostEvent], ...] = ()
    """Numbered from 1, the newest first."""

    @cached_property
    def summary(self) -> str:
        """A line about the whole host."""
        return summary(self.overview)


@dataclass(frozen=True)
class Arrangement:
    """How the user wants a screen's rows."""

    words: tuple[str, ...] = ()
    sort: int | None = None
    folded: frozenset[str] = frozenset()
    """Rows that are open although they would be closed, or the other way round."""
    everything: bool = False


def sheet_of(view: View, known: Known, arrangement: Arrangement) -> Sheet:
    """Return what a screen shows."""
    rows = list(_rows(view, known, everything=arrangement.everything))
    closed = {row.key for row in rows if row.key.startswith(VFS)} ^ arrangement.folded
    shown = list(arranged(rows, words=arrangement.words, closed=closed, sort=arrangement.sort))
    if rows and not shown:
        shown = [heading("none", f"No row has all of: {' '.join(arrangement.words)}", tone=Tone.DIM)]
    sheet = Sheet(_COLUMNS[view], shown, arrangement.sort)
    sheet.prepare()
    return sheet


def _rows(view: View, known: Known, *, everything: bool) -> Iterator[Row]:
    overview = known.overview
    makers: Mapping[View, Callable[[], Iterator[Row]]] = {
        View.DEVICES: lambda: DeviceRows(overview, known.names, everything=everything).rows(),
        View.CLAIMS: lambda: lists.claim_rows(overview),
        View.VGPUS: lambda: lists.vgpu_rows(overview, lambda card: _name(known, card)),
        View.DOMAINS: lambda: lists.domain_rows(overview),
        View.HISTORY: lambda: lists.history_rows(*known.changes),
        View.LOG: lambda: lists.log_rows(known.events),
        View.DOCTOR: lambda: lists.check_rows(*known.checked),
        View.KUBELET: lambda: kubelet.rows(*known.kubelet),
    }
    return makers[view]()


def sortable(view: View) -> int:
    """Return the number of columns of a screen."""
    return len(_COLUMNS[view])


def column_title(view: View, column: int) -> str:
    """Return the title of a column."""
    return _COLUMNS[view][column].title


def _name(known: Known, address: str) -> str:
    function = next((f for f in known.overview.inventory.functions if f.address == address), None)
    return known.names.of(function) if function else ""


def summary(overview: Overview) -> str:
    """Return a line about the whole host."""
    inventory = overview.inventory
    gpus = [gpu for gpu in inventory.gpus if not gpu.is_vf]
    held = {holder.address for holder in overview.holders.refusing}
    parts = [gpu_count(inventory, gpus, held=held) if gpus else "no GPU"]
    if overview.claims:
        parts.append(counted(len(overview.claims), "claim"))
    if overview.vgpus.instances:
        parts.append(counted(len(overview.vgpus.instances), "vGPU"))
    if not inventory.iommu.translating:
        parts.append(iommu_line(inventory))
    return plain(", ".join(parts))


def details(host: Host, view: View, key: str, known: Known, width: int) -> list[RenderableType]:
    """Return all about one row, as the command line shows it; nothing for most headings. May raise VfioctlError."""
    if key.startswith("missing:"):
        part = Part(key.partition(":")[2])
        why = known.overview.missing.get(part, "")
        return [Text(f"The {part} could not be read", style="bold"), Text(), Text(plain(why))]
    return _DETAILS[view](host, key, known, width)


def _device(_host: Host, key: str, known: Known, width: int) -> list[RenderableType]:
    key = key.removeprefix(VFS)
    overview, inventory = known.overview, known.overview.inventory
    function = next((f for f in inventory.functions if f.address == key), None)
    if function is None:
        why = next((why for address, why in inventory.unread.items() if address == key), "")
        return [Text(plain(f"{key} could not be read: {why}"))] if why else []
    parts: list[RenderableType] = [function_page(inventory, function.address, width=width)]
    holders = [h for h in overview.holders.holders if h.address in (function.address, *function.mdevs)]
    if holders:
        from dataclasses import replace

        own = replace(overview.holders, devices=(function.address,), holders=tuple(holders), marks=(), reservations=())
        parts += [Text(), Text("Held by", style="bold"), holders_page(own, width=width)]
    if usage := usage_words(overview.usage.get(function.address)):
        parts += [Text(), Text(f"In use: {usage}, as {plain(overview.usage[function.address].source)} reports")]
    card = next((card for card in overview.vgpus.cards if card.id == key), None)
    if card:
        parts += [Text(), Text(plain(f"vGPUs: {capacity_words(card)}"))]
    return parts


def _claim(host: Host, key: str, known: Known, _width: int) -> list[RenderableType]:
    claim = next((claim for claim in known.overview.claims if claim.id == key), None)
    if claim is None:
        return []
    from vfioctl.claims.render.claims import claim_page

    api = host.claims
    page = claim_page(claim, api.nodes(claim), api.events(claim), boot_id=api.boot_id, request=api.request(claim))
    return [page]


def _vgpu(_host: Host, key: str, known: Known, _width: int) -> list[RenderableType]:
    vgpu = next((vgpu for vgpu in known.overview.vgpus.instances if vgpu.id == key), None)
    if vgpu:
        reserved = known.overview.inventory.reserved.get(vgpu.id)
        claimed = [Text(), Text(plain(f"{reserved.words}."))] if reserved else []
        return [vgpu_page(vgpu, _name(known, vgpu.card)), *claimed]
    card = next((c for c in known.overview.vgpus.cards if key.partition(":")[2].partition("/")[0] == c.id), None)
    if card is None:
        return []
    from vfioctl.vgpu.render.listing import vgpu_types_page

    return [vgpu_types_page([card], {card.id: _name(known, card.id)}, (), (), width=_WHOLE)]


def _domain(_host: Host, key: str, known: Known, _width: int) -> list[RenderableType]:
    domain = next((domain for domain in known.overview.domains if domain.name == key), None)
    if domain is None:
        return []
    from vfioctl.console.columns import fact_grid
    from vfioctl.units import format_size

    facts: Sequence[tuple[str, str]] = (
        ("UUID", domain.uuid),
        ("state", domain.state),
        ("defined by", "vfioctl" if domain.ours else "somebody else"),
        ("claim", domain.claim),
        ("template", domain.template),
        ("unknown", domain.unknown),
        ("devices", listed(domain.devices)),
        ("vCPUs", str(domain.vcpus or "")),
        ("pinned", ", ".join(f"{pin.vcpu} to {pin.cpus}" for pin in domain.pins)),
        ("memory", format_size(domain.memory_bytes) if domain.memory_bytes else ""),
        ("host nodes", domain.nodes),
    )
    return [Text(f"Domain {plain(domain.name)}", style="bold"), fact_grid(facts, style="bold")]


def _change(host: Host, key: str, known: Known, _width: int) -> list[RenderableType]:
    from vfioctl.console.history_page import change_page  # pydantic, which it needs, would delay the first paint

    entry = next((entry for entry in known.changes.value if str(entry.id) == key), None)
    return [change_page(entry, host.session.registry)] if entry else []


def _check(_host: Host, key: str, known: Known, _width: int) -> list[RenderableType]:
    from vfioctl.console.choice import on_this_host
    from vfioctl.doctor.render.page import finding_page

    results = known.checked.value.results if known.checked.value else ()
    return [finding_page(results[int(key)], on_this_host)] if key.isdecimal() and int(key) < len(results) else []


def _event(_host: Host, key: str, known: Known, _width: int) -> list[RenderableType]:
    event = next((event for number, event in known.events if str(number) == key), None)
    return [Text(plain(f"{name:9}  {value}")) for name, value in vars(event).items() if value] if event else []


_DETAILS: Mapping[View, Callable[[Host, str, Known, int], list[RenderableType]]] = {
    View.DEVICES: _device,
    View.CLAIMS: _claim,
    View.VGPUS: _vgpu,
    View.DOMAINS: _domain,
    View.HISTORY: _change,
    View.LOG: _event,
    View.DOCTOR: _check,
    View.KUBELET: lambda _host, key, known, _width: kubelet.details(*known.kubelet, key),
}
