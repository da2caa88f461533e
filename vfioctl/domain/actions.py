"""The actions of domains: define one, remove a definition, create and delete volumes. May not verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vfioctl.core.action import Action, Context
from vfioctl.core.change import Step
from vfioctl.domain.model.definition import Seed
from vfioctl.domain.model.libvirt import place_of
from vfioctl.domain.resources.libvirt import CREATE, DEFINE, DELETE, UNDEFINE, WRITE


class _Order(Action):
    """An order to libvirt about what a step names: the URI, and the domain, or the pool and the volume."""

    name: ClassVar[str]
    order: ClassVar[str]
    words: ClassVar[str]
    parts: ClassVar[int] = 2

    def run(self, context: Context, step: Step) -> None:
        uri, *names = place_of(step.target, self.parts)
        context.kernel.tell_libvirt(uri, self.order, *self._arguments(names, step.value))

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.of("libvirt")

    def describe(self, step: Step) -> str:
        uri, *names = place_of(step.target, self.parts)
        return f"{self.words.format(*names)} at {uri}"

    def _arguments(self, names: Sequence[str], value: str) -> Sequence[str]:
        return names


class Define(_Order):
    """Defines a domain; libvirt compares its document with the schema first."""

    name, order, words, parts = DEFINE, "define", "define {}", 1

    def _arguments(self, names: Sequence[str], value: str) -> Sequence[str]:
        return (value,)


class Undefine(_Order):
    """Removes a domain's definition."""

    name, order, words, parts = UNDEFINE, "undefine", "remove the definition of {}", 1


class CreateImage(_Order):
    """Creates a disk image."""

    name, order, words = CREATE, "create_image", "create disk image {1} in pool {0}"

    def _arguments(self, names: Sequence[str], value: str) -> Sequence[str]:
        return (*names, value)


class WriteSeed(_Order):
    """Makes a seed from its files, and writes it to a new volume."""

    name, order, words = WRITE, "write_seed", "write cloud-init seed {1} to pool {0}"

    def _arguments(self, names: Sequence[str], value: str) -> Sequence[str]:
        return (*names, *Seed.model_validate_json(value).words)


class DeleteVolume(_Order):
    """Deletes a volume that the same plan has created, or a seed of which a part is missing."""

    name, order, words = DELETE, "delete_volume", "delete volume {1} in pool {0}"
