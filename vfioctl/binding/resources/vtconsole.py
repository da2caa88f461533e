"""The file `bind` of a vtconsole: whether the text console is drawn on the framebuffers."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.binding.resources.released import ReleasedFile


class VtConsole(ReleasedFile):
    """The text console. Its file disappears with the last framebuffer."""

    kind: ClassVar[str] = "console"
    path: ClassVar[str] = "/sys/class/vtconsole/vtcon[0-9]{1,3}/bind"
    value: ClassVar[str] = "[01]"
    released: ClassVar[str] = "0"
    why: ClassVar[str] = "the text console leaves the framebuffers"
    again: ClassVar[str] = "the text console as it was before"
