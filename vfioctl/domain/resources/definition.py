"""The resource `domain`: a domain's definition in libvirt. The value is its XML; empty if there is no definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from vfioctl.console.words import counted
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.domain.document.differences import is_definition_of, is_made_from, lost
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.model.definition import DEFINITION, checked_name, resource_name, subject_of
from vfioctl.domain.model.libvirt import checked_uri
from vfioctl.errors import BadDocument, BadSpec, some_of
from vfioctl.kernel.protocol import Reader
from vfioctl.units import format_size

DEFINE, UNDEFINE = "define domain", "undefine domain"
"""The actions."""
_DIGITS = 8


class DomainDefinition(FileResource):
    """The name is the URI of the libvirt and the domain's name: `qemu:///system web1`. See `definition`."""

    kind: ClassVar[str] = DEFINITION
    hint: ClassVar[str] = (
        "somebody else changes the domain: virsh, virt-manager? Or libvirt drops what its driver does not know, "
        "such as <qemu:commandline>"
    )
    fixed_start: ClassVar[bool] = True
    survives_reboot: ClassVar[bool] = True
    created: ClassVar[bool] = True
    shared_place: ClassVar[bool] = True
    may_block: ClassVar[bool] = False

    def validate(self, change: Change) -> None:
        uri, name = place_of(change.name)
        try:
            checked_uri(uri)
            checked_name(name)
        except BadSpec as error:
            raise ValueError(error.message) from None
        if change.subject != subject_of(name) or change.name != resource_name(uri, name):
            raise ValueError(f"not a domain's definition: {change.name[:80]!r}")
        if change.during is not None:
            raise ValueError("not the value of a domain: it has none while a change is under way")
        for text in filter(None, (change.before, change.after)):
            try:
                document_name = read_domain(text).name
            except BadDocument as error:
                raise ValueError(f"not the value of a domain: {error.message}") from None
            if document_name != name:
                raise ValueError(f"not the document of {name[:60]!r}")

    def read(self, reader: Reader, change: Change) -> str | None:
        """Raises HostError if libvirt does not answer: what is there now is then unknown."""
        return str(reader.ask_libvirt(place_of(change.name)[0], "definition", place_of(change.name)[1]))

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
        return Description(f"domain {place_of(change.name)[1]}", before, after)


def place_of(name: str) -> tuple[str, str]:
    """Return the URI and the domain's name in a resource's name."""
    uri, _, domain = name.partition(" ")
    return uri, domain


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
