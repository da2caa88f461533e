"""What mdevctl keeps in /etc/mdevctl.d: one JSON file for each instance, in a folder for each parent. Reads only.

It is read file by file, where mdevctl itself gives up all of them for one that is damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import Reader

HOME = "/etc/mdevctl.d"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_LONGEST = 65_536


def read_definitions(
    kernel: Reader, only: Collection[str] | None = None
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The definitions as plain facts, of all vGPUs or of some; and path and text of what could not be read."""
    found, problems = [], []
    for path, parent, uuid in _files(kernel) if only is None else _files_of(kernel, only):
        try:
            facts = parsed(kernel.read(path))
            found.append({"path": path, "parent": parent, "uuid": uuid.lower(), **facts})
        except KernelRefused as error:
            problems.append((path, error.symbol))
        except (ValueError, RecursionError) as error:
            problems.append((path, f"not a definition of mdevctl: {str(error)[:80]}"))
    return found, problems


def _files(kernel: Reader) -> Iterator[tuple[str, str, str]]:
    for parent in names_in(kernel, HOME):
        for name in names_in(kernel, f"{HOME}/{parent}"):
            if _UUID.fullmatch(name):
                yield f"{HOME}/{parent}/{name}", parent, name


def _files_of(kernel: Reader, uuids: Collection[str]) -> Iterator[tuple[str, str, str]]:
    for parent in names_in(kernel, HOME) if uuids else ():
        for name in names_in(kernel, f"{HOME}/{parent}"):
            if name.lower() in uuids:
                yield f"{HOME}/{parent}/{name}", parent, name


def parsed(text: str) -> dict[str, Any]:
    """`type`, `start` and `attributes` of a definition's text. Raises ValueError."""
    if len(text) > _LONGEST:
        raise ValueError("too long")
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("mdev_type"), str):
        raise ValueError("no mdev_type")  # noqa: TRY004 - what is wrong is the text
    attributes = document.get("attrs") or []
    if not isinstance(attributes, list) or not all(isinstance(each, dict) for each in attributes):
        raise ValueError("attrs is no list of objects")
    pairs = [(str(name), str(value)) for each in attributes for name, value in each.items()]
    return {"type": document["mdev_type"], "start": str(document.get("start", "manual")), "attributes": pairs}
