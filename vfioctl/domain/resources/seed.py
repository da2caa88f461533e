"""The resource `seed`: a volume with files for cloud-init. The value read is the digest of what a guest reads in it."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import ValidationError

from vfioctl.core.change import Change
from vfioctl.core.resource import Description, Found
from vfioctl.domain.model.storage import SEED, Seed
from vfioctl.domain.resources.volume import Volume, place_of
from vfioctl.kernel.libvirt.storage import INCOMPLETE

WRITE = "write seed"
"""The action."""
_FOUND = re.compile(rf"[0-9a-f]{{64}}|{INCOMPLETE}", re.ASCII)


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
        _, pool, volume = place_of(change.name)
        after = f"from {_seed(change).user_data}" if change.after else "none"
        before = "incomplete" if change.before == INCOMPLETE else "there" if change.before else "none"
        return Description(f"cloud-init seed {pool}/{volume}", before, after)


def _seed(change: Change) -> Seed:
    return Seed.model_validate_json(change.after)
