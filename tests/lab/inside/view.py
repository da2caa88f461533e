"""The host as pciutils sees it, to hold vfioctl's inventory against; shares no code with it."""

import subprocess
from typing import NamedTuple


class Viewed(NamedTuple):
    """One function; ids and class are lower-case hexadecimal without 0x."""

    address: str
    vendor: str
    device: str
    kind: str
    driver: str | None
    modules: tuple[str, ...]
    group: int | None
    node: int


def functions() -> dict[str, Viewed]:
    """Every PCI function by address."""
    kinds = _whole_classes()
    records = [_record(block) for block in _output(["lspci", "-Dnkvmm"]).strip().split("\n\n")]
    return {record["Slot"][0]: _viewed(record, kinds[record["Slot"][0]]) for record in records}


def _whole_classes() -> dict[str, str]:
    # with the programming interface, which lspci leaves out
    lines = _output(["sh", "-c", "grep --with-filename . /sys/bus/pci/devices/*/class"]).splitlines()
    return {path.split("/")[-2]: kind for path, kind in (line.rsplit(":0x", 1) for line in lines)}


def _viewed(record: dict[str, list[str]], kind: str) -> Viewed:
    groups = record.get("IOMMUGroup")
    return Viewed(
        address=record["Slot"][0],
        vendor=record["Vendor"][0],
        device=record["Device"][0],
        kind=kind,
        driver=record.get("Driver", [None])[0],
        modules=tuple(sorted(record.get("Module", []))),
        group=int(groups[0]) if groups else None,
        node=int(record.get("NUMANode", ["-1"])[0]),
    )


def _record(block: str) -> dict[str, list[str]]:
    record: dict[str, list[str]] = {}
    for line in block.splitlines():
        key, _, value = line.partition(":")
        record.setdefault(key, []).append(value.strip())
    return record


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
