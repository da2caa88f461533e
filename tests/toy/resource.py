"""The label of a toy: one file with one word."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.core.resource import FileResource


class Label(FileResource):
    kind: ClassVar[str] = "label"
    path: ClassVar[str] = "/sys/devices/toys/{}/label"
    value: ClassVar[str] = "[a-z]{1,20}"
    why: ClassVar[str] = "a toy has one label"
    hint: ClassVar[str] = "a child may have torn it off"
    fixed_start: ClassVar[bool] = True
