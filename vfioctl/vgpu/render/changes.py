"""Renders the results of a vGPU change as lines of text below its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vfioctl.console.columns import Column, Layout
from vfioctl.console.words import plain
from vfioctl.vgpu.model.persistent import still_defined
from vfioctl.vgpu.model.vgpu import Definition, Dialect, Left, Vgpu
from vfioctl.vgpu.render.listing import count_words

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
        yield plain(f"{change.card} has {room} of {change.profile or change.type}")


def defined_lines(defined: Mapping[str, Definition]) -> Iterator[str]:
    """One line for each removed vGPU that is still defined, and one with the command that removes the definition."""
    for uuid, definition in defined.items():
        yield plain(f"{still_defined(uuid, definition)}; to remove that too:")
        yield f"vfioctl vgpu remove {uuid} --definition --foreign"


def _row(vgpu: Vgpu) -> tuple[str, str, str, str, str]:
    group = "" if vgpu.iommu_group is None else f"group {vgpu.iommu_group}"
    node = vgpu.vfio_cdev or vgpu.vfio_group or ""
    if not node and vgpu.dialect in (Dialect.SRIOV, Dialect.XE):
        node = plain(vgpu.driver or "no driver")
    if node == vgpu.vfio_group:
        group = ""  # its node is named after it
    return (vgpu.id, plain(vgpu.profile or vgpu.type), vgpu.parent if vgpu.parent != vgpu.id else "", group, node)
