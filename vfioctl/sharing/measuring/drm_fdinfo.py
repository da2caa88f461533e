"""Reads the text of a DRM file in /proc/PID/fdinfo. May not do I/O.

Source: Documentation/gpu/drm-usage-stats.rst. Engines have `drm-engine-NAME: N ns`, or, as with xe, `drm-cycles-NAME`
and `drm-total-cycles-NAME`; `drm-engine-capacity-NAME` is the number of equal engines behind a name.
`drm-resident-REGION: N KiB` is the memory that a client has there now, and `drm-memory-REGION` the same of older
drivers; the regions of a GPU's own memory are vram, vram0, local0 and so on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from vfioctl.kernel.protocol import PCI_ADDRESS

_NUMBER = re.compile(r"([0-9]{1,20})( ns)?", re.ASCII)
_ENGINE, _CAPACITY = "drm-engine-", "drm-engine-capacity-"
_CYCLES, _TOTAL = "drm-cycles-", "drm-total-cycles-"
_SIZE = re.compile(r"([0-9]{1,20})( KiB| MiB)?", re.ASCII)
_OWN_MEMORY = re.compile(r"drm-(resident|memory)-((?:vram|local)[0-9]*)", re.ASCII)
_MOST_LINES = 512


class DrmClient(NamedTuple):
    """The counters of one client of a DRM device. All values are by engine."""

    gpu: str
    """The address of the GPU."""
    client: str
    """Its number, unique for each device while the client lives."""
    driver: str
    nanoseconds: Mapping[str, int]
    cycles: Mapping[str, int]
    total_cycles: Mapping[str, int]
    capacities: Mapping[str, int]
    memory: int = 0
    """Bytes of the GPU's own memory."""


def client_in(text: str) -> DrmClient | None:
    """Return the client in a text; None for a device that is no PCI function, or counts nothing. Lines that are not
    understood cost only themselves."""
    words: dict[str, str] = {}
    for line in text.split("\n", _MOST_LINES)[:_MOST_LINES]:
        key, colon, value = line.partition(":")
        if colon and key.startswith("drm-"):
            words[key] = value.strip()
    gpu, client = words.get("drm-pdev", ""), words.get("drm-client-id", "")
    if not PCI_ADDRESS.fullmatch(gpu) or not _NUMBER.fullmatch(client):
        return None
    capacities = _numbers(words, _CAPACITY)
    engines = {k: n for k, n in _numbers(words, _ENGINE).items() if not k.startswith("capacity-")}
    cycles, total = _numbers(words, _CYCLES), _numbers(words, _TOTAL)
    if not engines and not cycles:
        return None
    return DrmClient(gpu, client, words.get("drm-driver", ""), engines, cycles, total, capacities, _memory(words))


def _memory(words: Mapping[str, str]) -> int:
    sizes: dict[str, dict[str, int]] = {}
    for key, value in words.items():
        if (name := _OWN_MEMORY.fullmatch(key)) and (size := _SIZE.fullmatch(value)):
            unit = {None: 0, " KiB": 10, " MiB": 20}[size[2]]
            sizes.setdefault(name[1], {})[name[2]] = int(size[1]) << unit
    return sum((sizes.get("resident") or sizes.get("memory") or {}).values())


def _numbers(words: Mapping[str, str], prefix: str) -> dict[str, int]:
    matches = {key[len(prefix) :]: _NUMBER.fullmatch(value) for key, value in words.items() if key.startswith(prefix)}
    return {name: int(match[1]) for name, match in matches.items() if match and name}
