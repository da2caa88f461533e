"""Renders the list of devices in CDI files, and the check of Kata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, Layout, Whole, note_lines, table
from vfioctl.containers.cdi.files import CdiFileFound
from vfioctl.containers.kata.check import Finding

_COLUMNS = (Column("DEVICE"), Column("NODES"), Column("CLAIM", optional=True), Column("WRITTEN BY"), Column("FILE"))
_WRITTEN_BY = {True: "vfioctl", False: "another program"}
_STATES = {True: "ok", False: "wrong", None: "unknown"}
_CHECKS = (Column("CHECK"), Column(""), Column("FOUND"))


def cdi_table(files: Sequence[CdiFileFound], claims: Mapping[str, str], problem: str, *, width: int) -> RenderableType:
    """The devices, by file. `claims`: their claims, by name of the device. `width`: of the terminal, in columns."""
    rows = [
        (f"{file.kind}={name}", " ".join(nodes) or "-", claims.get(name, ""), _WRITTEN_BY[file.ours], file.path)
        for file in files
        for name, nodes in file.devices.items()
    ]
    lines = table(_COLUMNS, rows, width) if rows else [Text("No CDI file defines a device.")]
    notes = [f"{file.path}: {problem}" for file in files for problem in file.problems]
    return Stack(*lines, *note_lines([*notes, *([problem] if problem else [])]))


def cdi_document(files: Sequence[CdiFileFound], claims: Mapping[str, str], problem: str) -> dict[str, Any]:
    """The document of `vfioctl cdi list --json`."""
    documents = []
    for file in files:
        devices = [{"name": n, "nodes": list(nodes), "claim": claims.get(n)} for n, nodes in file.devices.items()]
        documents.append(asdict(file) | {"devices": devices})
    return {"files": documents, "warnings": [problem] if problem else []}


def findings_page(findings: Sequence[Finding], *, width: int) -> RenderableType:
    """The lines of the check, each remedy below its line. `width`: of the terminal, in columns."""
    rows = [(finding.name, _STATES[finding.ok], finding.found) for finding in findings]
    layout = Layout(_CHECKS, rows, width)
    lines: list[RenderableType] = [*layout.header()]
    for finding, line in zip(findings, layout.lines(rows, cut=False), strict=True):
        lines += [line, Whole(f"-> {finding.remedy}")] if finding.remedy else [line]
    return Stack(*lines)
