"""Renders claims, their events, and where the machine differs from them. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.claims.model.cdi import qualified_name
from vfioctl.claims.model.claim import ANOTHER_BOOT, Claim, ClaimedDevice, ClaimState, Event, Nodes, Stale, Undo
from vfioctl.claims.model.difference import Difference, Fix
from vfioctl.console.columns import Column, Layout, fact_grid
from vfioctl.console.plan_page import clock
from vfioctl.console.words import plain
from vfioctl.placement.model.share import GpuShare
from vfioctl.units import format_cpu_list, format_size

Row = tuple[str, ...]
_INDENT = 4
NO_REQUEST: Mapping[str, object] = {}
_COLUMNS = (
    Column("ID"),
    Column("OWNER"),
    Column("STATE"),
    Column("SINCE (UTC)"),
    Column("CPUS"),
    Column("HUGEPAGES", optional=True),
    Column("EXPIRES (UTC)", optional=True),
    Column("BY", optional=True),
    Column("DEVICES"),
)
_CPUS = 4
"""The column that is there if a claim has CPUs, however narrow the terminal is."""
_STATES = {
    ClaimState.RESERVED: "reserved: its devices are being prepared, or that was interrupted",
    ClaimState.HELD: "held",
    ClaimState.RELEASING: "releasing: its devices are being put back, or that was interrupted",
    ClaimState.WEDGED: "wedged: a change of its devices could not be finished; vfioctl recover tries again",
    ClaimState.RELEASED: "released",
    ClaimState.FAILED: "failed: its devices are what they were before",
}
_ON_RELEASE = {
    Undo.NOTHING: "stays as it is",
    Undo.UNBIND: "goes back to the driver that it had",
    Undo.REMOVE: "is removed",
}
_FIXES = {
    Fix.RELEASE: "releases the claim",
    Fix.END: "ends the claim, which has changed nothing",
    Fix.RENEW: "writes CDI files and permissions again",
    Fix.RESTORE: "binds or creates again what the claim had, and keeps it",
}


def claims_table(claims: Sequence[Claim], stale: Stale, *, width: int, boot_id: str = "") -> RenderableType:
    """Render claims in the order given, for `width` columns. `stale`: which are stale, and why.
    `boot_id`: the host's, to mark those that were not verified since it booted."""
    hidden = () if any(claim.cpus for claim in claims) else (_CPUS,)
    rows = [tuple(cell for index, cell in enumerate(_row(claim)) if index not in hidden) for claim in claims]
    layout = Layout([column for index, column in enumerate(_COLUMNS) if index not in hidden], rows, width)
    parts: list[RenderableType] = [*layout.header()]
    for claim, row, line in zip(claims, rows, layout.lines(rows), strict=True):
        parts += [*_fitting(claim, row, line, layout), *_why(claim, stale, boot_id)]
    return Stack(*parts)


def _fitting(claim: Claim, row: Row, line: RenderableType, layout: Layout) -> Iterator[RenderableType]:
    """Yield the line of a claim; if it is too long, a line for each device."""
    devices = _asked(claim)
    if not isinstance(line, Text) or line.cell_len <= layout.width or len(devices) < 2:
        yield line
    else:
        blank = [""] * (len(row) - 1)
        yield from layout.lines([(*row[:-1], devices[0]), *((*blank, device) for device in devices[1:])])


def claim_page(
    claim: Claim,
    nodes: Mapping[str, Nodes],
    events: Sequence[Event] = (),
    *,
    stale: str = "",
    boot_id: str = "",
    request: Mapping[str, object] = NO_REQUEST,
) -> RenderableType:
    """Render one claim: its devices and what a guest opens, why it is stale, and what happened to it.
    `boot_id`: as for `claims_table`. `request`: what it was made for."""
    asked = (f"{name}={_value(value)}" for name, value in request.items() if name not in ("owner", "labels"))
    facts = [*_facts(claim, stale, boot_id), ("request", plain(" ".join(asked)))]
    happened = [event_line(event) + (f"  plan {event.plan}" if event.plan else "") for event in events]
    return Stack(
        Text(f"Claim {claim.id} of {plain(claim.owner)}", style="bold"),
        fact_grid([(name, text) for name, text in facts if text], style="bold"),
        *(line for device in claim.devices for line in _device(claim, device, nodes.get(device.subject, Nodes()))),
        *(line for share in claim.shares for line in _share(claim, share)),
        *([Text("What happened", style="bold")] if events else []),
        *(Text(f"  {event}") for event in happened),
    )


def _value(value: object) -> str:
    return ",".join(map(_value, value)) if isinstance(value, list) else str(value).lower()


def event_line(event: Event, devices: Sequence[str] = ()) -> str:
    """Return one event as a line of text. `devices`: those of its claim."""
    who = f"{event.sudo_user} (sudo)" if event.sudo_user else event.user
    why = f": {event.why}" if event.why else ""
    names = "".join(f"  {device}" for device in devices)
    return plain(f"{clock(event.at)}  {event.claim}  {event.owner}  {event.state}  {who}{names}{why}")


def _row(claim: Claim) -> Row:
    by = f"{claim.sudo_user} (sudo)" if claim.sudo_user else claim.user
    expires = clock(claim.expires) if claim.expires else ""
    pages = " ".join(f"{load.pages}x{format_size(load.size)}@{load.node}" for load in claim.hugepages)
    since, cpus, devices = clock(claim.since), format_cpu_list(claim.cpus), plain(" ".join(_asked(claim)))
    return claim.id, plain(claim.owner), claim.state, since, cpus, pages, expires, plain(by), devices


def _asked(claim: Claim) -> list[str]:
    devices = [device.subject if device.mdev else device.address for device in claim.devices if device.asked]
    return [*devices, *(f"{share.address} ({share.words})" for share in claim.shares)]


def _why(claim: Claim, stale: Stale, boot_id: str) -> Iterator[RenderableType]:
    if _is_of_another_boot(claim, boot_id):
        yield Padding.indent(Text(ANOTHER_BOOT), _INDENT)
    if claim.id in stale:
        yield Padding.indent(Text(plain(f"stale: {stale[claim.id][1]}")), _INDENT)
    if claim.why:
        yield Padding.indent(Text(plain(claim.why)), _INDENT)


def _is_of_another_boot(claim: Claim, boot_id: str) -> bool:
    return claim.is_live and bool(boot_id) and claim.boot_id != boot_id


def _facts(claim: Claim, stale: str, boot_id: str) -> Iterator[tuple[str, str]]:
    """Yield the facts of a claim; a text is empty if there is none."""
    yield "state", _STATES[claim.state]
    yield "boot", ANOTHER_BOOT if _is_of_another_boot(claim, boot_id) else ""
    yield "stale", plain(stale)
    yield "reason", plain(claim.why)
    yield "CPUs", format_cpu_list(claim.cpus)
    for pages in claim.hugepages:
        yield "hugepages", f"{pages.pages} of {format_size(pages.size)} on node {pages.node}"
    yield "labels", plain(" ".join(f"{key}={value}" for key, value in claim.labels.items()))
    yield "key", plain(claim.key)
    for name, time in (("since", claim.since), ("expires", claim.expires), ("ended", claim.ended)):
        yield name, f"{clock(time)} UTC" if time else ""
    user = f"{claim.sudo_user}, with sudo as {claim.user}" if claim.sudo_user else claim.user
    yield "by", plain(f"{user}, process {claim.pid}")
    yield "plans", " ".join(claim.plans)


def _device(claim: Claim, device: ClaimedDevice, nodes: Nodes) -> Iterator[RenderableType]:
    what = f"{device.mdev} on {device.address}" if device.mdev else device.address
    files = " or ".join(node for node in nodes if node)
    named = f", CDI device {qualified_name(device.subject)}" if files and device.asked else ""
    travels = "" if device.asked else "; it travels with the others"
    yield Text(plain(what), style="bold")
    if not claim.is_live:
        return
    yield Padding.indent(Text(f"{files or 'no VFIO device file'}{named}{travels}"), _INDENT)
    yield Padding.indent(Text(f"on release it {_ON_RELEASE[device.undo]}"), _INDENT)


def _share(claim: Claim, share: GpuShare) -> Iterator[RenderableType]:
    yield Text(plain(share.address), style="bold")
    total = f" of {format_size(share.total)}" if share.memory and share.total else ""
    amount = "the whole GPU" if share.is_whole else share.words
    yield Padding.indent(Text(plain(f"{amount}{total}, with its host driver")), _INDENT)
    if share.cdi and claim.is_live:
        yield Padding.indent(Text(plain(f"CDI device {share.cdi}")), _INDENT)
    if not share.is_whole:
        asked = f"{share.enforce} was asked for to enforce it; " if share.enforce else ""
        yield Padding.indent(Text(f"{asked}vfioctl share plan shows what enforces it"), _INDENT)


def differences_page(differences: Sequence[Difference], command: Callable[[str], str]) -> RenderableType:
    """Render differences. `command`: adds to a remedy the options that select the host."""
    return Stack(*(part for difference in differences for part in _difference(difference, command)))


def _difference(difference: Difference, command: Callable[[str], str]) -> Iterator[RenderableType]:
    whose = f"claim {difference.claim} of {difference.owner}" if difference.claim else ""
    what = " ".join(filter(None, [whose, difference.device]))
    yield Text(plain(": ".join(filter(None, [difference.kind, what]))), style="bold")
    yield Padding.indent(Text(plain(difference.words)), _INDENT)
    if difference.fix:
        yield Padding.indent(Text(f"reconcile --fix {_FIXES[difference.fix]}"), _INDENT)
    yield Padding.indent(Text(plain(f"-> {command(difference.remedy)}")), _INDENT)
