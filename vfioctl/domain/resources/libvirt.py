"""The resources of libvirt: domains' definitions, disk images, seeds. A name begins with the URI of its libvirt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from pydantic import ValidationError

from vfioctl.console.words import counted
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.domain.document.differences import is_definition_of, is_made_from, lost
from vfioctl.domain.document.reader import read_domain
from vfioctl.domain.model.definition import (
    DEFINITION,
    IMAGE,
    SEED,
    Seed,
    checked_name,
    resource_name,
    subject_of,
    volume_subject,
)
from vfioctl.domain.model.libvirt import checked_uri, place_of
from vfioctl.errors import BadDocument, BadSpec, some_of
from vfioctl.kernel.libvirt.storage import INCOMPLETE, WRITTEN
from vfioctl.kernel.protocol import Reader
from vfioctl.units import format_size


class LibvirtResource(FileResource):
    """A thing of libvirt. `question` is what libvirt is asked for its value, about the parts of its place."""

    fixed_start: ClassVar[bool] = True
    survives_reboot: ClassVar[bool] = True
    created: ClassVar[bool] = True
    shared_place: ClassVar[bool] = True
    may_block: ClassVar[bool] = False
    question: ClassVar[str]
    parts: ClassVar[int] = 2
    """Of the place, after the URI."""

    def validate(self, change: Change) -> None:
        try:
            checked_uri(self.place(change)[0])
        except BadSpec as error:
            raise ValueError(error.message) from None
        if change.during is not None:
            raise ValueError(f"not the value of a {self.kind}: it has none while a change is under way")

    def place(self, change: Change) -> tuple[str, ...]:
        """Return the URI, and the domain's name, or the pool and the volume; empty where the name has too few."""
        return place_of(change.name, self.parts)

    def read(self, reader: Reader, change: Change) -> str | None:
        """Raises HostError if libvirt does not answer: what is there now is then unknown."""
        uri, *names = self.place(change)
        return str(reader.ask_libvirt(uri, self.question, *names))


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
        phase, action, why = Phase.FORGET, UNDEFINE, "as asked for"
        if change.after:
            phase, action, why = Phase.PERSIST, DEFINE, "so that libvirt can start it"
        yield Step(phase=phase, action=action, target=change.name, value=change.after, why=why)

    def matches(self, change: Change, found: str | None) -> bool:
        return found is not None and is_definition_of(found, change.after)

    def restore(self, change: Change, found: Found) -> Change | None:
        """Leave a definition alone that somebody else has made or removed since. One that was just made from this
        document is not, though a driver may have dropped parts of it."""
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


CREATE, WRITE, DELETE = "create disk image", "write seed", "delete volume"
"""The actions."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}", re.ASCII)
_VALUE = re.compile(r"[0-9]{1,15}( on (qcow2|raw) /[^\0-\x1f]{1,1024})?", re.ASCII)
_FOUND = re.compile(rf"[0-9a-f]{{64}}|{INCOMPLETE}", re.ASCII)


class Volume(LibvirtResource):
    """The name is the URI of the libvirt, the pool and the volume: `qemu:///system default web1.qcow2`."""

    hint: ClassVar[str] = "somebody else changes the pool: virsh, virt-manager?"
    create: ClassVar[str]
    """The action that creates it."""

    def validate(self, change: Change) -> None:
        """A plan file can name no place outside a pool, and change no volume that is there."""
        super().validate(change)
        uri, pool, volume = self.place(change)
        are_names = _NAME.fullmatch(pool) and _NAME.fullmatch(volume)
        if not are_names or change.name != f"{uri} {pool} {volume}" or change.subject != volume_subject(volume):
            raise ValueError(f"not a volume: {change.name[:80]!r}")

    def steps(self, change: Change) -> Iterator[Step]:
        if self.matches(change, change.before):
            return
        if change.before:
            yield Step(phase=Phase.REMOVE, action=DELETE, target=change.name, value="", why="it is not needed")
        if value := change.after:
            why = "so that the domain has it"
            yield Step(phase=Phase.CREATE, action=self.create, target=change.name, value=value, why=why)

    def restore(self, change: Change, found: Found) -> Change | None:
        """Delete what the change created. What nobody knows stays."""
        now = found.of(change)
        return change.to("", found=now) if now and not change.before and self._is_own(change, now, found) else None

    def _is_own(self, change: Change, now: str, found: Found) -> bool:
        return self.matches(change, now)


class DiskImage(Volume):
    """The value is in words, such as `42949672960 on qcow2 /images/debian.qcow2`; size 0: that of the base."""

    kind: ClassVar[str] = IMAGE
    question: ClassVar[str] = "volume"
    create: ClassVar[str] = CREATE

    def validate(self, change: Change) -> None:
        """Only creating one, and taking that back, is a change: no plan changes or deletes what was there."""
        super().validate(change)
        if not change.name.endswith(".qcow2"):
            raise ValueError(f"not the name of a disk image: {change.name[:80]!r}")
        texts = filter(None, (change.before.removesuffix(WRITTEN), change.after))
        if change.after == "0" or not all(map(_VALUE.fullmatch, texts)):
            raise ValueError("not the value of a disk image")

    def matches(self, change: Change, found: str | None) -> bool:
        return found is not None and is_image(found, change.after)

    def _is_own(self, change: Change, now: str, found: Found) -> bool:
        """An image in which a guest has written stays, whoever it was."""
        return self.matches(change, now) and not now.endswith(WRITTEN)

    def describe(self, change: Change) -> Description:
        _, pool, volume = self.place(change)
        return Description(f"disk image {pool}/{volume}", words_of(change.before), words_of(change.after))


def is_image(found: str, wanted: str) -> bool:
    """Return whether a value that was read is what was wanted."""
    if not found or not wanted:
        return found == wanted
    parts, wanted_parts = found.removesuffix(WRITTEN).partition(" on "), wanted.partition(" on ")
    return parts[2] == wanted_parts[2] and wanted_parts[0] in ("0", parts[0])


def words_of(value: str) -> str:
    """Return a value as text for a page."""
    if not value:
        return "none"
    amount, _, base = value.removesuffix(WRITTEN).partition(" on ")
    large = "as large as its base" if amount == "0" else format_size(int(amount))
    return f"{large}, on {base.partition(' ')[2]}" if base else large


class SeedVolume(Volume):
    """The value wanted is JSON, see `Seed`: it names the files and not what is in them, which may be secret."""

    kind: ClassVar[str] = SEED
    question: ClassVar[str] = "seed"
    create: ClassVar[str] = WRITE

    def validate(self, change: Change) -> None:
        super().validate(change)
        if change.before and _FOUND.fullmatch(change.before) is None:
            raise ValueError("not the value of a seed")
        try:
            end = f"-seed-{_seed(change).sha256[:12]}.iso" if change.after else ".iso"
        except ValidationError:
            raise ValueError("not the value of a seed") from None
        if not change.name.endswith(end):
            raise ValueError(f"not the name of this seed: {change.name[:80]!r}")

    def matches(self, change: Change, found: str | None) -> bool:
        return found == (_seed(change).sha256 if change.after else "")

    def _is_own(self, change: Change, now: str, found: Found) -> bool:
        """A part of one is ours as well, if writing it was begun."""
        return self.matches(change, now) or change.key in found.written

    def describe(self, change: Change) -> Description:
        _, pool, volume = self.place(change)
        after = f"from {_seed(change).user_data}" if change.after else "none"
        before = "incomplete" if change.before == INCOMPLETE else "there" if change.before else "none"
        return Description(f"cloud-init seed {pool}/{volume}", before, after)


def _seed(change: Change) -> Seed:
    return Seed.model_validate_json(change.after)
