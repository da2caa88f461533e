"""The resources `disk image` and `seed`: volumes of libvirt, which are created and never changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from pydantic import ValidationError

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, Found
from vfioctl.domain.model.definition import IMAGE, SEED, Seed, volume_subject
from vfioctl.domain.resources.libvirt import LibvirtResource
from vfioctl.kernel.libvirt.storage import INCOMPLETE, WRITTEN
from vfioctl.units import format_size

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
        return self._is(change, now)


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

    def _is(self, change: Change, found: str) -> bool:
        return is_image(found, change.after)

    def _is_own(self, change: Change, now: str, found: Found) -> bool:
        """An image in which a guest has written stays, whoever it was."""
        return self._is(change, now) and not now.endswith(WRITTEN)

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

    def _is(self, change: Change, found: str) -> bool:
        return found == (_seed(change).sha256 if change.after else "")

    def _is_own(self, change: Change, now: str, found: Found) -> bool:
        """A part of one is ours as well, if writing it was begun."""
        return self._is(change, now) or change.key in found.written

    def describe(self, change: Change) -> Description:
        _, pool, volume = self.place(change)
        after = f"from {_seed(change).user_data}" if change.after else "none"
        before = "incomplete" if change.before == INCOMPLETE else "there" if change.before else "none"
        return Description(f"cloud-init seed {pool}/{volume}", before, after)


def _seed(change: Change) -> Seed:
    return Seed.model_validate_json(change.after)
