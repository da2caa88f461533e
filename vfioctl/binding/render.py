"""Renders an expansion ROM: its images and its faults. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.binding.model.rom import Image, Rom
from vfioctl.console.columns import Column, note_lines, table
from vfioctl.units import format_size

_COLUMNS = (
    Column("OFFSET", right=True),
    Column("SIZE", right=True),
    Column("CLASS"),
    Column("CHECKSUM"),
    Column("DEVICE"),
    Column("CODE"),
)


def rom_page(rom: Rom, *, width: int) -> RenderableType:
    """Render the ROM of a function for `width` columns."""
    return Stack(*_parts(rom, width))


def _parts(rom: Rom, width: int) -> Iterator[RenderableType]:
    verdict = Text("sound", style="green") if rom.is_sound else Text("not sound", style="red")
    title = Text(f"ROM of {rom.address}: {format_size(rom.size)}, ", style="bold")
    yield title.append_text(verdict)
    yield Text(f"sha256 {rom.sha256}")
    if rom.images:
        yield Text("")
        yield from table(_COLUMNS, [_row(image) for image in rom.images], width)
    yield from note_lines(f"{note[:1].upper()}{note[1:]}." for note in (*rom.faults, *rom.remarks))


def _row(image: Image) -> tuple[str, ...]:
    checksum = {True: "right", False: "wrong", None: "has none"}[image.checksum_holds]
    more = f" +{len(image.other_devices)}" if image.other_devices else ""
    code = f"{image.kind} {image.machine}" if image.machine else image.kind
    return (
        f"0x{image.offset:x}",
        format_size(image.size),
        image.class_code,
        checksum,
        f"{image.vendor_id}:{image.device_id}{more}",
        code,
    )
