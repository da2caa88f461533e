"""The resource `domain`: a domain's definition in libvirt. The value is its XML; empty if there is no definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.console.words import counted
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, Found
from vfioctl.domain.document.differences import is_definition_of, is_made_from, lost
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.model.definition import DEFINITION, checked_name, resource_name, subject_of
from vfioctl.domain.resources.libvirt import LibvirtResource
from vfioctl.errors import BadDocument, BadSpec, some_of
from vfioctl.units import format_size

DEFINE, UNDEFINE = "define domain", "undefine domain"
"""The actions."""
_DIGITS = 8


class DomainDefinition(LibvirtResource):
    """The name is the URI of the libvirt and the domain's name: `qemu:///system web1`. See `definition`."""

    kind: ClassVar[str] = DEFINITION
    hint: ClassVar[str] = (
        "somebody else changes the domain: virsh, virt-manager? Or libvirt drops what its driver does not know, "
        "such as <qemu:commandline>"
    )
    question: ClassVar[str] = "definition"
    parts: ClassVar[int] = 1

    def validate(self, change: Change) -> None:
        super().validate(change)
        uri, name = self.place(change)
        try:
            checked_name(name)
        except BadSpec as error:
            raise ValueError(error.message) from None
        if change.subject != subject_of(name) or change.name != resource_name(uri, name):
            raise ValueError(f"not a domain's definition: {change.name[:80]!r}")
        for text in filter(None, (change.before, change.after)):
            try:
                document_name = read_domain(text).name
            except BadDocument as error:
                raise ValueError(f"not the value of a domain: {error.message}") from None
            if document_name != name:
                raise ValueError(f"not the document of {name[:60]!r}")

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before == change.after:
            return
        yield Step(
            phase=Phase.PERSIST if change.after else Phase.FORGET,
            action=DEFINE if change.after else UNDEFINE,
            target=change.name,
            value=change.after,
            why="so that libvirt can start it" if change.after else "as asked for",
        )

    def matches(self, change: Change, found: str | None) -> bool:
        return found is not None and is_definition_of(found, change.after)

    def restore(self, change: Change, found: Found) -> Change | None:
        """Leave a definition alone that somebody else has made or removed since.

        One that was just made from this document is not, though a driver may have dropped parts of it.
        """
        now = found.of(change)
        if now is None or now == change.before:
            return None
        is_made = change.key in found.written and is_made_from(now, change.after)
        return change.to(change.before, found=now) if is_made or self.matches(change, now) else None

    def finish(self, change: Change, found: Found) -> Change | None:
        now = found.of(change)
        if now is None or now == change.before:
            return None if now is None else change
        return change.model_copy(update={"before": now, "after": now}) if self.matches(change, now) else None

    def describe(self, change: Change) -> Description:
        before, after = _words(change.before), _words(change.after)
        if before == after and (missing := lost(change.before, change.after)):
            before += f" without {some_of(missing)}"
        return Description(f"domain {self.place(change)[1]}", before, after)


def _words(text: str) -> str:
    if not text:
        return "not defined"
    try:
        document = read_domain(text)
    except BadDocument:
        return "something else"
    devices = counted(len(document.host_devices), "device")
    parts = [counted(document.vcpus or 0, "vCPU"), format_size(document.memory or 0), devices]
    parts.append(f"document {document.mark.digest[:_DIGITS]}" if document.mark.digest else "not of vfioctl")
    return ", ".join(parts)
