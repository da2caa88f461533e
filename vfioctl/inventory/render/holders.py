"""Renders the holders of devices, and what makes each release its device. May not read the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from itertools import groupby

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Column, Layout, note_lines
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.model.values import Subject
from vfioctl.inventory.render import phrases

_COLUMNS = (Column("PID", right=True), Column("NAME"), Column("USER"), Column("WHO"))
_INDENT = 2


def holders_page(holders: Holders, *, width: int) -> RenderableType:
    """Render the holders for `width` columns, by device; devices with the same holders are grouped."""
    return Stack(*_parts(holders, width))


def _parts(found: Holders, width: int) -> Iterator[RenderableType]:
    layout = Layout(_COLUMNS, [_row(holder) for holder in found.refusing], width - _INDENT)
    for number, (devices, holders) in enumerate(_by_devices(found.refusing).items()):
        yield from [Text()] if number else []
        yield Text(words.listed(devices), style="bold")
        yield from (Padding.indent(line, _INDENT) for line in layout.header())
        for row, alike in groupby(holders, _row):
            yield from (Padding.indent(line, _INDENT) for line in layout.lines([row], cut=False))
            yield Padding.indent(Text(_how([*alike])), 4 * _INDENT)
    taken = {holder.address for holder in found.refusing}
    if free := [address for address in found.devices if address not in taken]:
        yield from [Text()] if taken else []
        listed = words.listed(free)
        yield Text(f"Whether anybody holds {listed} is unknown." if found.unknown else f"Nobody holds {listed}.")
    yield from note_lines(_notes(found))


def _by_devices(holders: Iterable[Holder]) -> Mapping[tuple[Subject, ...], tuple[Holder, ...]]:
    by_devices: dict[Subject, tuple[Holder, ...]] = {}
    for holder in holders:
        by_devices[holder.address] = (*by_devices.get(holder.address, ()), holder)
    together: dict[tuple[object, ...], list[Subject]] = {}
    for address, of_it in by_devices.items():
        together.setdefault(tuple(astuple(holder)[1:] for holder in of_it), []).append(address)
    return {tuple(addresses): by_devices[addresses[0]] for addresses in together.values()}


def _row(holder: Holder) -> tuple[str, ...]:
    pid = str(holder.pid) if holder.pid is not None else "-"
    return pid, words.plain(holder.name), words.plain(holder.user or "-"), words.plain(_who(holder))


def _who(holder: Holder) -> str:
    if holder.pid is None:
        return holder.kind.value
    return f"guest {holder.guest}" if holder.guest else holder.container or holder.unit or "-"


def _how(alike: Sequence[Holder]) -> str:
    doubt = "may have it open: " if alike[0].kind == HolderKind.UNREAD else ""
    ways = [doubt + ": ".join(filter(None, (holder.path, holder.how))) for holder in alike]
    pod = [f"pod {alike[0].pod}"] if alike[0].pod else []
    return words.plain("  ->  ".join(filter(None, ("; ".join([*ways, *pod]), alike[0].remedy))))


def _notes(holders: Holders) -> Iterator[str]:
    for address, why in holders.unread_functions.items():
        yield f"Whether anybody holds {address} is unknown: it could not be read ({words.plain(why)})."
    yield from map(phrases.mark_line, holders.marks)
    yield from map(phrases.reservation_line, holders.reservations)
    for holder in holders.holders:
        if holder.kind == HolderKind.CONSOLE:
            yield f"{holder.address} has the text console on it ({words.plain(holder.name)}, {holder.path})."
    modules = {holder.name: holder for holder in holders.holders if holder.kind == HolderKind.MODULE}
    for holder in modules.values():
        yield f"The module {words.plain(holder.name)} is {words.plain(holder.how)}."
    if holders.unread:
        one = holders.unread == 1
        more = "" if any(holder.kind == HolderKind.UNREAD for holder in holders.holders) else "; root can read more"
        yield f"{holders.unread} process{'' if one else 'es'} could not be read, and may hold it too{more}."
    if holders.hidden:
        yield f"Processes may be hidden: {words.plain(holders.hidden)}."
    if holders.unknown:
        yield f"unknown: {words.plain(holders.unknown)}; some may hold a device."
