"""Names of PCI devices from udev's hardware database, else from pci.ids, else none. Reads only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PCI_IDS = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))
_MODALIAS = re.compile(r"pci:v0000(.{4})d0000(.{4})sv0000(.{4})sd0000(.{4})bc(..)sc(..)i(..)")
_COMMENT = re.compile(r"\n[ \t]*(?:#[^\n]*)?(?=\n)")
Names = Callable[[str], Mapping[str, str]]


def hardware_database(report_progress: Callable[[], None]) -> Names:
    """Looks up a modalias: ID_VENDOR_FROM_DATABASE, ID_MODEL_FROM_DATABASE, ID_PCI_*_FROM_DATABASE.
    `report_progress`: called between the parts, each of which can take a second on a busy machine."""
    return _udev(report_progress) or _pci_ids() or (lambda _modalias: {})


@contextmanager
def _reporting(report_progress: Callable[[], None]) -> Iterator[None]:
    """Report progress whenever an import looks for a module: on a busy machine all that pyudev needs take seconds."""
    finder: Any = SimpleNamespace(find_spec=lambda *_: report_progress())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _udev(report_progress: Callable[[], None]) -> Names | None:
    try:
        with _reporting(report_progress):
            from pyudev import Context
    except ImportError:  # no libudev on this machine
        return None
    report_progress()
    with suppress(ImportError):
        from pyudev._ctypeslib import utils

        # ctypes would run ldconfig, and then gcc: processes for each worker, which take longer than all names
        utils.find_library = "lib{}.so.1".format
    try:
        context = Context()
        report_progress()
        library: Any = context._libudev  # noqa: SLF001 - pyudev declares udev_hwdb_* there and has no class for them
        database = library.udev_hwdb_new(context)
    except (AttributeError, OSError):
        return None
    return (lambda modalias: _udev_properties(library, database, modalias)) if database else None


def _udev_properties(library: Any, database: c_void_p, modalias: str) -> Mapping[str, str]:
    properties, entry = {}, library.udev_hwdb_get_properties_list_entry(database, modalias.encode(), 0)
    while entry:
        key, value = library.udev_list_entry_get_name(entry), library.udev_list_entry_get_value(entry)
        properties[key.decode()] = value.decode("utf-8", "replace")
        entry = library.udev_list_entry_get_next(entry)
    return properties


def _pci_ids() -> Names | None:
    for file in PCI_IDS:
        try:
            text = f"\n{file.read_text(encoding='utf-8', errors='replace')}\n"
        except OSError:
            continue
        entries = _COMMENT.sub("", text)
        return lambda modalias: _from_pci_ids(entries, modalias)
    return None


def _from_pci_ids(text: str, modalias: str) -> Mapping[str, str]:
    match = _MODALIAS.match(modalias)
    if match is None:
        return {}
    vendor, device, subvendor, subdevice, base, sub, interface = (part.lower() for part in match.groups())
    vendor_name, devices = _section(text, f"\n{vendor}  ")
    device_name, subsystems = _section(devices, f"\n\t{device}  ")
    class_name, subclasses = _section(text, f"\nC {base}  ")
    subclass_name, interfaces = _section(subclasses, f"\n\t{sub}  ")
    names = {
        "ID_VENDOR_FROM_DATABASE": vendor_name,
        "ID_MODEL_FROM_DATABASE": device_name,
        "ID_PCI_SUBSYS_FROM_DATABASE": _section(subsystems, f"\n\t\t{subvendor} {subdevice}  ")[0],
        "ID_PCI_CLASS_FROM_DATABASE": class_name,
        "ID_PCI_SUBCLASS_FROM_DATABASE": subclass_name,
        "ID_PCI_INTERFACE_FROM_DATABASE": _section(interfaces, f"\n\t\t{interface}  ")[0],
    }
    return {key: name for key, name in names.items() if name}


def _section(text: str, start: str) -> tuple[str, str]:
    """An entry's name, and the more deeply indented lines below it; like `text`, these begin and end with a newline."""
    at = text.find(start)
    if at < 0:
        return "", ""
    below = text.find("\n", at + len(start))
    deeper = "\t" * (start.count("\t") + 1)
    end = re.compile(rf"\n(?!{deeper})").search(text, below)
    return text[at + len(start) : below], text[below : end.end() if end else None]
