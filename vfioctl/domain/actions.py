"""The actions of domains: define one, remove a definition, create and delete volumes. May not verify."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.core.action import Context
from vfioctl.core.change import Step
from vfioctl.domain.model.storage import Seed
from vfioctl.domain.resources.definition import DEFINE, UNDEFINE, place_of
from vfioctl.domain.resources.disk_image import CREATE
from vfioctl.domain.resources.seed import WRITE
from vfioctl.domain.resources.volume import DELETE
from vfioctl.domain.resources.volume import place_of as volume_of


class Define:
    """Defines a domain; libvirt compares its document with the schema first."""

    name: ClassVar[str] = DEFINE
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        context.kernel.tell_libvirt(place_of(step.target)[0], "define", step.value)

    def describe(self, step: Step) -> str:
        uri, name = place_of(step.target)
        return f"define {name} at {uri}"

    def progress(self, step: Step) -> str:
        return self.describe(step)


class Undefine:
    """Removes a domain's definition."""

    name: ClassVar[str] = UNDEFINE
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        context.kernel.tell_libvirt(place_of(step.target)[0], "undefine", place_of(step.target)[1])

    def describe(self, step: Step) -> str:
        uri, name = place_of(step.target)
        return f"remove the definition of {name} at {uri}"

    def progress(self, step: Step) -> str:
        return self.describe(step)


class CreateImage:
    """Creates a disk image."""

    name: ClassVar[str] = CREATE
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        uri, pool, volume = volume_of(step.target)
        context.kernel.tell_libvirt(uri, "create_image", pool, volume, step.value)

    def describe(self, step: Step) -> str:
        uri, pool, volume = volume_of(step.target)
        return f"create disk image {volume} in pool {pool} at {uri}"

    def progress(self, step: Step) -> str:
        return self.describe(step)


class WriteSeed:
    """Makes a seed from its files, and writes it to a new volume."""

    name: ClassVar[str] = WRITE
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        uri, pool, volume = volume_of(step.target)
        words = Seed.model_validate_json(step.value).words
        context.kernel.tell_libvirt(uri, "write_seed", pool, volume, *words)

    def describe(self, step: Step) -> str:
        uri, pool, volume = volume_of(step.target)
        return f"write cloud-init seed {volume} to pool {pool} at {uri}"

    def progress(self, step: Step) -> str:
        return self.describe(step)


class DeleteVolume:
    """Deletes a volume that the same plan has created, or a seed of which a part is missing."""

    name: ClassVar[str] = DELETE
    merges: ClassVar[bool] = False

    def run(self, context: Context, step: Step) -> None:
        uri, pool, volume = volume_of(step.target)
        context.kernel.tell_libvirt(uri, "delete_volume", pool, volume)

    def describe(self, step: Step) -> str:
        uri, pool, volume = volume_of(step.target)
        return f"delete volume {volume} in pool {pool} at {uri}"

    def progress(self, step: Step) -> str:
        return self.describe(step)
