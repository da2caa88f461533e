"""The rows of the screens of claims, vGPUs, domains, changes and events. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vfioctl.console.words import counted
from vfioctl.doctor.model.result import DoctorDocument, Status
from vfioctl.overview.model.event import HostEvent
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.tui.model.sheet import Column, Row, Tone, View, cell, heading
from vfioctl.units import format_cpu_list, format_size
from vfioctl.vgpu.model.vgpu import Vgpu, VgpuCard, VgpuState
from vfioctl.vgpu.render.listing import count_words

if TYPE_CHECKING:
    from vfioctl.core.change import JournalEntry

CARD, TYPE = "card:", "type:"
"""What the keys of a card that offers vGPUs, and of one of its types, begin with."""

CLAIMS = (
    Column("CLAIM"),
    Column("OWNER", most=32),
    Column("STATE"),
    Column("SINCE (UTC)", rank=1),
    Column("EXPIRES (UTC)", rank=2),
    Column("CPUS", rank=3, most=20),
    Column("BY", rank=4),
    Column("DEVICES"),
)
VGPUS = (
    Column("VGPU OR TYPE", most=44),
    Column("PROFILE", most=24),
    Column("STATE", most=24),
    Column("OWNER", rank=1, most=24, least=7),
    Column("GROUP", right=True, rank=3),
    Column("ON", rank=2),
    Column("NODE"),
)
DOMAINS = (
    Column("NAME", most=32),
    Column("STATE"),
    Column("BY"),
    Column("CLAIM", rank=1),
    Column("VCPUS", right=True, rank=2),
    Column("MEMORY", right=True, rank=3),
    Column("NODES", rank=4),
    Column("DEVICES"),
)
HISTORY = (
    Column("ID", right=True),
    Column("BEGAN (UTC)"),
    Column("STATE"),
    Column("BY", rank=1),
    Column("PLAN", rank=2),
    Column("WHAT"),
)
LOG = (
    Column("TIME (UTC)"),
    Column("SOURCE"),
    Column("ACTION"),
    Column("TIMES", right=True, rank=1),
    Column("SUBJECT", most=44),
    Column("DETAIL"),
)
CHECKS = (
    Column("RESULT"),
    Column("CHECK"),
    Column("DEVICES", rank=1, most=26, least=12),
    Column("MEANING OR WHAT WAS READ"),
)
_STATES = {
    "back": ("rolled back", Tone.WARNING),
    "open": ("interrupted", Tone.BAD),
    "stuck": ("stuck", Tone.BAD),
}
_RESULTS = {Status.FAIL: Tone.BAD, Status.UNKNOWN: Tone.WARNING, Status.NOTE: Tone.PLAIN, Status.PASS: Tone.GOOD}
_BAD = (VgpuState.ZOMBIE, VgpuState.ORPHAN, VgpuState.WEDGED)


def claim_rows(overview: Overview) -> Iterator[Row]:
    """Yield the live claims, the newest first."""
    from vfioctl.console.plan_page import clock  # pydantic, which it needs, would delay the first paint

    yield from _missing(overview, Part.CLAIMS, View.CLAIMS)
    for claim in overview.claims:
        shares = (f"{share.address} ({share.words})" for share in claim.shares)
        devices = " ".join((*(device.subject for device in claim.devices if device.asked), *shares))
        state = Tone.GOOD if claim.state == "held" else Tone.BAD if claim.state == "wedged" else Tone.WARNING
        by = f"{claim.sudo_user} (sudo)" if claim.sudo_user else claim.user
        expires = clock(claim.expires) if claim.expires else ""
        yield Row(
            claim.id,
            (
                *(cell(claim.id), cell(claim.owner), cell(claim.state, state), cell(clock(claim.since))),
                *(cell(expires), cell(format_cpu_list(claim.cpus)), cell(by), cell(devices)),
            ),
            hidden=" ".join(claim.labels.values()),
        )
    if not overview.claims and _is_known(overview, Part.CLAIMS):
        yield heading("none", "No claims. On the screen of devices, c claims what is selected.", tone=Tone.DIM)


def vgpu_rows(overview: Overview, name_of: Callable[[str], str]) -> Iterator[Row]:
    """Yield the cards that offer vGPUs, each with its types and its vGPUs. `name_of`: the name of a card."""
    yield from _missing(overview, Part.VGPUS, View.VGPUS)
    for card in overview.vgpus.cards:
        there = [vgpu for vgpu in overview.vgpus.instances if vgpu.card == card.id]
        words = f"{card.id}  {name_of(card.id)}  {counted(len(there), 'vGPU')}".rstrip()
        yield heading(f"{CARD}{card.id}", words, is_open=True if there or card.types else None)
        yield from map(_vgpu, there)
        yield from _types(card)
    known = {card.id for card in overview.vgpus.cards}
    yield from (_vgpu(vgpu)._replace(parent="") for vgpu in overview.vgpus.instances if vgpu.card not in known)
    if not (overview.vgpus.cards or overview.vgpus.instances) and _is_known(overview, Part.VGPUS):
        yield heading("none", "No card here offers vGPUs.", tone=Tone.DIM)


def _types(card: VgpuCard) -> Iterator[Row]:
    for kind in card.types:
        free = kind.available.at_most != 0
        there = f"{kind.existing} there, " if kind.existing else ""
        state = f"{there}{count_words(kind.available)} free" if free else f"{there}no room"
        memory = format_size(kind.framebuffer_bytes) if kind.framebuffer_bytes else ""
        tone = Tone.PLAIN if free or kind.existing else Tone.DIM
        cells = (
            *(cell(f"type {kind.id}", tone), cell(kind.profile or kind.name, tone)),
            *(cell(state, Tone.GOOD if free else Tone.DIM), cell(""), cell(""), cell(""), cell(memory, tone)),
        )
        yield Row(f"{TYPE}{card.id}/{kind.id}", cells, 0, f"{CARD}{card.id}", hidden=kind.name)


def _vgpu(vgpu: Vgpu) -> Row:
    group = "" if vgpu.iommu_group is None else str(vgpu.iommu_group)
    cells = (
        *(cell(vgpu.id), cell(vgpu.profile or vgpu.type)),
        cell(vgpu.state, Tone.BAD if vgpu.state in _BAD else Tone.PLAIN),
        *(cell(vgpu.owner), cell(group), cell(vgpu.parent if vgpu.parent != vgpu.id else "")),
        cell((vgpu.vfio_cdev or vgpu.vfio_group or "").removeprefix("/dev/")),
    )
    return Row(vgpu.id, cells, 0, f"{CARD}{vgpu.card}", hidden=vgpu.type_name)


def domain_rows(overview: Overview) -> Iterator[Row]:
    """Yield libvirt's domains."""
    yield from _missing(overview, Part.DOMAINS, View.DOMAINS)
    for domain in overview.domains:
        memory = format_size(domain.memory_bytes) if domain.memory_bytes else ""
        unclear = f"its document cannot be read: {domain.unknown}" if domain.unknown else ""
        yield Row(
            domain.name,
            (
                cell(domain.name),
                cell(domain.state, Tone.DIM if domain.state == "defined" else Tone.GOOD),
                *(cell("vfioctl" if domain.ours else ""), cell(domain.claim), cell(domain.vcpus or "")),
                *(cell(memory), cell(domain.nodes)),
                cell(unclear, Tone.WARNING) if unclear else cell(" ".join(domain.devices)),
            ),
            hidden=domain.uuid,
        )
    if not overview.domains and _is_known(overview, Part.DOMAINS):
        yield heading("none", "libvirt has no domains.", tone=Tone.DIM)


def history_rows(entries: Sequence[JournalEntry], problem: str = "") -> Iterator[Row]:
    """Yield the changes, the newest first. `problem`: why they could not be read."""
    from vfioctl.console.plan_page import clock  # as above

    if problem:
        yield heading("unread", f"The changes could not be read: {problem}", tone=Tone.WARNING)
    for entry in entries:
        state, tone = _STATES.get(str(entry.state), (str(entry.state), Tone.PLAIN))
        if entry.under_way:
            state, tone = "under way", Tone.WARNING
        caller = entry.caller
        by = f"{caller.sudo_user} (sudo)" if caller.sudo_user else caller.user
        what = entry.plan.intent.title() + (f", for {entry.made_for}" if entry.made_for else "")
        yield Row(
            str(entry.id),
            (
                *(cell(entry.id), cell(clock(entry.began)), cell(state, tone), cell(by), cell(entry.plan.id)),
                cell(f"{what}: {entry.why}" if entry.why else what),
            ),
            hidden=" ".join((*entry.plan.subjects, entry.made_for)),
        )
    if not entries and not problem:
        yield heading("none", "No change was made on this host yet.", tone=Tone.DIM)


def check_rows(checked: DoctorDocument | None, problem: str = "") -> Iterator[Row]:
    """Yield what the checks found, problems first. `problem`: why they could not be run."""
    results = checked.results if checked else ()
    if problem:
        yield heading("unread", f"The checks could not be run: {problem}", tone=Tone.WARNING)
    elif checked is None:
        yield heading("reading", "The checks are being run.", tone=Tone.DIM)
    for number, result in sorted(enumerate(results), key=lambda pair: [*Status].index(pair[1].status)):
        if result.status is not Status.NOT_APPLICABLE:
            cells = (
                *(cell(result.status, _RESULTS[result.status]), cell(result.check)),
                *(cell(" ".join(result.devices)), cell(result.meaning or result.evidence)),
            )
            yield Row(str(number), cells, hidden=f"{result.evidence} {result.remedy}")


def log_rows(events: Iterable[tuple[int, HostEvent]]) -> Iterator[Row]:
    """Yield events with their numbers, the newest first."""
    number = 0
    for number, event in events:
        lost = event.source == "watch"
        yield Row(
            str(number),
            (
                *(cell(event.at[11:23]), cell(event.source), cell(event.action, Tone.WARNING if lost else Tone.PLAIN)),
                *(cell(event.count if event.count > 1 else ""), cell(event.subject), cell(event.detail)),
            ),
        )
    if not number:
        yield heading("none", "Nothing has happened since this screen was opened.", tone=Tone.DIM)


def _is_known(overview: Overview, part: Part) -> bool:
    return part not in overview.missing and part not in overview.without


def _missing(overview: Overview, part: Part, view: View) -> Iterator[Row]:
    if part in overview.without:
        yield heading("reading", f"{view} are being read.", tone=Tone.DIM)
    if problem := overview.missing.get(part):
        yield heading(f"missing:{part}", f"{view} could not be read: {problem}", tone=Tone.WARNING)
