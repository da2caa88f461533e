"""What disk images and seeds have in common: they are volumes of libvirt, which are created and never changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import FileResource, Found
from vfioctl.domain.model.libvirt import checked_uri
from vfioctl.domain.model.storage import volume_subject
from vfioctl.errors import BadSpec
from vfioctl.kernel.protocol import Reader

DELETE = "delete volume"
"""The action."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}", re.ASCII)


class Volume(FileResource):
    """The name is the URI of the libvirt, the pool and the volume: `qemu:///system default web1.qcow2`."""

    hint: ClassVar[str] = "somebody else changes the pool: virsh, virt-manager?"
    fixed_start: ClassVar[bool] = True
    survives_reboot: ClassVar[bool] = True
    created: ClassVar[bool] = True
    shared_place: ClassVar[bool] = True
    may_block: ClassVar[bool] = False
    question: ClassVar[str]
    create: ClassVar[str]
    """The action that creates it."""

    def validate(self, change: Change) -> None:
        """A plan file can name no place outside a pool, and change no volume that is there."""
        uri, pool, volume = place_of(change.name)
        try:
            checked_uri(uri)
        except BadSpec as error:
            raise ValueError(error.message) from None
        if change.name != f"{uri} {pool} {volume}" or not (_NAME.fullmatch(pool) and _NAME.fullmatch(volume)):
            raise ValueError(f"not a volume: {change.name[:80]!r}")
        if change.subject != volume_subject(volume):
            raise ValueError(f"not a volume: {change.name[:80]!r}")
        if change.during is not None:
            raise ValueError(f"not the value of a {self.kind}: it has none while a change is under way")

    def read(self, reader: Reader, change: Change) -> str | None:
        """Raises HostError if libvirt does not answer: what is there now is then unknown."""
        uri, pool, volume = place_of(change.name)
        return str(reader.ask_libvirt(uri, self.question, pool, volume))

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before and not self._is(change, change.before):
            yield self._step(change, Phase.REMOVE, DELETE, "")
        if change.after and not self._is(change, change.before):
            yield self._step(change, Phase.CREATE, self.create, change.after)

    def _step(self, change: Change, phase: Phase, action: str, value: str) -> Step:
        why = "so that the domain has it" if value else "it is not needed"
        return Step(phase=phase, action=action, target=change.name, value=value, why=why)

    def matches(self, change: Change, found: str | None) -> bool:
        return found is not None and self._is(change, found)

    def _is(self, change: Change, found: str) -> bool:
        """Return whether a value that was read is the change's goal."""
        return found == change.after

    def restore(self, change: Change, found: Found) -> Change | None:
        """Delete what the change created. What nobody knows stays."""
        now = found.of(change)
        if not now or change.before or not self._is_own(change, now, found):
            return None
        return change.to("", found=now)

    def _is_own(self, change: Change, now: str, found: Found) -> bool:
        del found
        return self._is(change, now)


def place_of(name: str) -> tuple[str, str, str]:
    """Return the URI, the pool and the volume in a resource's name."""
    uri, _, place = name.partition(" ")
    pool, _, volume = place.partition(" ")
    return uri, pool, volume
