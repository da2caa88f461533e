"""Converts the results of a vGPU change to and from the plain objects in the report of its outcome.

May not do input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from vfioctl.vgpu.model.vgpu import Definition, Left, Vgpu

VGPUS, LEFT, STILL_DEFINED = "vgpus", "left", "still_defined"
_LATER = ConfigDict(defer_build=True)
_VGPUS = TypeAdapter(tuple[Vgpu, ...], config=_LATER)
_LEFT = TypeAdapter(tuple[Left, ...], config=_LATER)
_DEFINITIONS = TypeAdapter(dict[str, Definition], config=_LATER)


def report_of(vgpus: Iterable[Vgpu], left: Iterable[Left]) -> Mapping[str, Any]:
    """The vGPUs that a change created, and the remaining capacity, as plain JSON objects."""
    return {VGPUS: _VGPUS.dump_python(tuple(vgpus), mode="json"), LEFT: _LEFT.dump_python(tuple(left), mode="json")}


def vgpus_in(report: Mapping[str, Any]) -> tuple[Vgpu, ...]:
    """The vGPUs that a change created, or the VFs that it enabled, as read afterwards."""
    return _VGPUS.validate_python(report.get(VGPUS, ()))


def left_in(report: Mapping[str, Any]) -> tuple[Left, ...]:
    """The remaining capacity for the types of the vGPUs that a change created."""
    return _LEFT.validate_python(report.get(LEFT, ()))


def report_of_defined(defined: Mapping[str, Definition]) -> Mapping[str, Any]:
    """The definitions of removed mediated devices that are left, by UUID, as plain JSON objects; empty for none."""
    return {STILL_DEFINED: _DEFINITIONS.dump_python(dict(defined), mode="json")} if defined else {}


def still_defined_in(report: Mapping[str, Any]) -> Mapping[str, Definition]:
    """The definitions of removed mediated devices that are left, by UUID."""
    return _DEFINITIONS.validate_python(report.get(STILL_DEFINED, {}))
