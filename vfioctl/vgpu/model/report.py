"""Converts the results of a vGPU change to and from the plain objects in the report of its outcome.

May not do input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from vfioctl.vgpu.model.vgpu import Left, Vgpu

VGPUS, LEFT = "vgpus", "left"


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


@cache
def _vgpus() -> TypeAdapter[tuple[Vgpu, ...]]:
    return TypeAdapter(tuple[Vgpu, ...])


@cache
def _left() -> TypeAdapter[tuple[Left, ...]]:
    return TypeAdapter(tuple[Left, ...])
