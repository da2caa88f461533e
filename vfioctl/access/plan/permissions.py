"""Plans who may open which device node. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.access.model.record import Record, file_of, node_of, record_in, subject_of
from vfioctl.access.resources import AccessFile, NodePermissions
from vfioctl.claims.model.access import Access
from vfioctl.core.change import Change


def changes(wanted: Mapping[str, Access], given: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Change]:
    """Yield what must change. `wanted`: by node. `given`: the text of each note, by its name. `now`: the permissions of
    each node that exists. What somebody else has set since is left alone when access is taken back."""
    for node in sorted({*wanted, *map(node_of, given)}):
        file, found = file_of(node), now.get(node, "")
        text = given.get(file.rpartition("/")[2], "")
        record, access = record_in(text), wanted.get(node)
        is_ours = record is not None and found == record.access.permissions
        before = record.before if record and is_ours else found
        if access and found:
            yield from _to(node, found, access.permissions, file, text, Record(access, before).text)
        else:
            yield from _to(node, found, before, file, text, "")


def _to(node: str, found: str, permissions: str, file: str, text: str, note: str) -> Iterator[Change]:
    subject = subject_of(node)
    if found != permissions:
        yield Change(kind=NodePermissions.kind, name=node, subject=subject, before=found, after=permissions)
    if text != note:
        yield Change(kind=AccessFile.kind, name=file, subject=subject, before=text, after=note)
