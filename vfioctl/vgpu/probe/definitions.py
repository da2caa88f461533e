"""Reads mdevctl's definitions in /etc/mdevctl.d: one JSON file for each vGPU, in a directory for each parent.

Reads only. A damaged file costs only that definition, while mdevctl itself then fails for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import DEFINITIONS
from vfioctl.kernel.lenient import failure_of, names_in
from vfioctl.kernel.protocol import FileReader
from vfioctl.units import UUID
from vfioctl.untrusted_text import parse_json
from vfioctl.vgpu.model.vgpu import Definition

_LONGEST = 65_536


class Defined(NamedTuple):
    """The definition of a mediated device, its parent, and its UUID in lower case."""

    parent: str
    uuid: str
    definition: Definition


def read_definitions(
    kernel: FileReader, only: Collection[str] | None = None
) -> tuple[list[Defined], list[tuple[str, str]]]:
    """The definitions, and the path of each file that could not be read with the reason.

    `only`: UUIDs in lower case whose definitions are read; None for all.
    """
    definitions, problems = [], []
    for path, parent, uuid in _files(kernel, only):
        try:
            definitions.append(Defined(parent, uuid.lower(), parsed(path, kernel.read(path))))
        except KernelRefused as error:
            problems.append((path, error.symbol))
        except ValueError as error:
            problems.append((path, f"not a definition of mdevctl: {str(error)[:80]}"))
        except Exception as error:  # noqa: BLE001 - such as a RecursionError; the others are read
            problems.append((path, f"not a definition of mdevctl: {failure_of(error)}"))
    return definitions, problems


def _files(kernel: FileReader, only: Collection[str] | None) -> Iterator[tuple[str, str, str]]:
    for parent in names_in(kernel, DEFINITIONS) if only is None or only else ():
        for name in names_in(kernel, f"{DEFINITIONS}/{parent}"):
            if UUID.fullmatch(name) if only is None else name.lower() in only:
                yield f"{DEFINITIONS}/{parent}/{name}", parent, name


def parsed(path: str, text: str) -> Definition:
    """The definition with this path and text. Raises ValueError when it is malformed."""
    document = parse_json(text, most=_LONGEST)
    if not isinstance(document, dict) or not isinstance(document.get("mdev_type"), str):
        raise ValueError("no mdev_type")  # noqa: TRY004 - the text is at fault, not the argument's type
    attributes = document.get("attrs") or []
    if not isinstance(attributes, list) or not all(isinstance(attribute, dict) for attribute in attributes):
        raise ValueError("attrs is no list of objects")
    pairs = tuple((_text(name), _text(value)) for attribute in attributes for name, value in attribute.items())
    return Definition(path, _text(document["mdev_type"]), _text(document.get("start", "manual")), pairs)


def _text(value: object) -> str:
    """As text that can be written: JSON may hold half of a surrogate pair. Raises ValueError."""
    text = str(value)
    text.encode()
    return text
