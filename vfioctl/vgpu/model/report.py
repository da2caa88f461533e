"""Converts the results of a vGPU change to and from the plain objects in the report of its outcome.

May not do input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from vfioctl.vgpu.model.vgpu import Definition, Left, Vgpu

VGPUS, LEFT, STILL_DEFINED = "vgpus", "left", "still_defined"


def report_of(vgpus: Iterable[Vgpu], left: Iterable[Left]) -> Mapping[str, Any]:
    """The vGPUs that a change created, and the remaining capacity, as plain JSON objects."""
    return {
        VGPUS: _vgpus().dump_python(tuple(vgpus), mode="json"),
        LEFT: _left().dump_python(tuple(left), mode="json"),
    }


def vgpus_in(report: Mapping[str, Any]) -> tuple[Vgpu, ...]:
    """The vGPUs that a change created, or the VFs that it enabled, as read afterwards."""
    return _vgpus().validate_python(report.get(VGPUS, ()))


def left_in(report: Mapping[str, Any]) -> tuple[Left, ...]:
    """The remaining capacity for the types of the vGPUs that a change created."""
    return _left().validate_python(report.get(LEFT, ()))


def report_of_defined(defined: Mapping[str, Definition]) -> Mapping[str, Any]:
    """The definitions of removed mediated devices that are left, by UUID, as plain JSON objects; empty for none."""
    return {STILL_DEFINED: _definitions().dump_python(dict(defined), mode="json")} if defined else {}


def still_defined_in(report: Mapping[str, Any]) -> Mapping[str, Definition]:
    """The definitions of removed mediated devices that are left, by UUID."""
    return _definitions().validate_python(report.get(STILL_DEFINED, {}))


@cache
def _definitions() -> TypeAdapter[dict[str, Definition]]:
    return TypeAdapter(dict[str, Definition])


@cache
def _vgpus() -> TypeAdapter[tuple[Vgpu, ...]]:
    return TypeAdapter(tuple[Vgpu, ...])


@cache
def _left() -> TypeAdapter[tuple[Left, ...]]:
    return TypeAdapter(tuple[Left, ...])
