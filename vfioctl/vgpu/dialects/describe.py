"""Parses the name and the description of a vGPU type. They are free text of drivers: malformed parts are ignored.

Forms: `num_heads=1, frl_config=60, framebuffer=4096M, max_resolution=4096x2400, max_instance=4` (NVIDIA),
`virtual display, 16 MB video memory` (samples/vfio-mdev/mbochs.c), `low_gm_size: 128MB` and so on, a line each (GVT-g).
"""

from __future__ import annotations

import re
from typing import Any

MIB, GIB = 1 << 20, 1 << 30

_PAIR = re.compile(r"([a-z_]{1,32})=([0-9a-zA-Z]{1,32})", re.ASCII)
_PROFILE = re.compile(
    r".*?[A-Za-z0-9]-(?:(?P<slices>[1-9])-)?(?P<memory>[0-9]{1,3})[ABCQ][0-9]?(?:ME|NOME|MEALL|GFX)*", re.ASCII
)
_SIZE = re.compile(r"([0-9]{1,9})M", re.ASCII)
_VIDEO_MEMORY = re.compile(r"\b([1-9][0-9]{0,6}) MB video memory\b", re.ASCII)
_GVT = re.compile(r"^(low_gm_size|high_gm_size|fence): ([1-9][0-9]{0,6})(?:MB)?$", re.ASCII | re.MULTILINE)
_GVT_AMOUNTS = 3


def described(name: str, description: str) -> dict[str, Any]:
    """The fields of `VgpuType` that follow from its name and description."""
    profile = next(iter(name.rsplit(maxsplit=1)[-1:]), "")
    return {"profile": profile, **_by_profile(profile), **_by_pairs(description), **_by_amounts(description)}


def _by_profile(profile: str) -> dict[str, Any]:
    """NVIDIA's profile names: card, MIG slices for a MIG-backed type, GiB, series. `0` stands for half a GiB."""
    match = _PROFILE.fullmatch(profile)
    if match is None:
        return {}
    facts: dict[str, Any] = {"framebuffer_bytes": int(match["memory"]) * GIB or GIB // 2}
    return facts | ({"mig_slices": int(match["slices"])} if match["slices"] else {})


def _by_pairs(description: str) -> dict[str, Any]:
    pairs = dict(_PAIR.findall(description[:4096]))
    facts: dict[str, Any] = {}
    if (size := _SIZE.fullmatch(pairs.get("framebuffer", ""))) and int(size[1]):
        facts["framebuffer_bytes"] = int(size[1]) * MIB
    for key, field in (("num_heads", "heads"), ("max_instance", "max_instances")):
        if re.fullmatch(r"[0-9]{1,6}", pairs.get(key, ""), re.ASCII):
            facts[field] = int(pairs[key])
    if "max_resolution" in pairs:
        facts["max_resolution"] = pairs["max_resolution"]
    return facts


def _by_amounts(description: str) -> dict[str, Any]:
    """The amounts that a type uses of a pool that all types of its device share."""
    amounts = {name: int(number) for name, number in _GVT.findall(description[:4096])}
    if len(amounts) == _GVT_AMOUNTS:
        memory = (amounts["low_gm_size"] + amounts["high_gm_size"]) * MIB
        return {"takes": amounts, "framebuffer_bytes": memory}
    if video := _VIDEO_MEMORY.search(description[:4096]):
        return {"takes": {"video memory": int(video[1])}, "framebuffer_bytes": int(video[1]) * MIB}
    return {}


def creatable(text: str) -> dict[str, str]:
    """The type names in `creatable_vgpu_types`, by id. Lines are `1145  : NVIDIA L40S-1B`, with or without a header."""
    counts = {}
    for line in text.split("\n"):
        number, colon, name = line.partition(":")
        if colon and name.strip() and re.fullmatch(r"[1-9][0-9]{0,8}", number.strip(), re.ASCII):
            counts[number.strip()] = name.strip()
    return counts
