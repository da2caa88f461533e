"""What all resources of libvirt have in common: the name of each begins with the URI of the libvirt that has it."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.core.change import Change
from vfioctl.core.resource import FileResource
from vfioctl.domain.model.libvirt import checked_uri, place_of
from vfioctl.errors import BadSpec
from vfioctl.kernel.protocol import Reader


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
