"""Writes the parts of docs/reference that follow from the sources: the JSON schemas and the table of exit codes.

python -m docs.generate        writes them; tests/unit/test_documents.py says when that is due
"""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

from vfioctl import errors
from vfioctl.claims.model.preview_documents import CreatePreview, ReleasePreview
from vfioctl.core import marks, reservations
from vfioctl.core.change import JournalEntry, Plan
from vfioctl.core.value import Value
from vfioctl.domain.model import build, finding, fleet, listing, spec, verification
from vfioctl.domain.model.build import BuildDocument, Comparison
from vfioctl.domain.model.finding import CheckDocument
from vfioctl.domain.model.fleet import FleetDocument, FleetSpec
from vfioctl.domain.model.listing import DomainListDocument, DomainShowDocument
from vfioctl.domain.model.running import StartDocument, StartPreview, StopDocument
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.domain.model.verification import Verification
from vfioctl.errors import VfioctlError
from vfioctl.inventory.model import document, functions, groups, holders
from vfioctl.inventory.model.document import InventoryDocument
from vfioctl.inventory.model.holders import Holders
from vfioctl.placement.model import placement
from vfioctl.placement.model.placement import PlacementDocument
from vfioctl.vgpu.model import vgpu
from vfioctl.vgpu.model.vgpu import Vgpu, VgpuListDocument, VgpuTypesDocument

REFERENCE = Path(__file__).resolve().parent / "reference"
_BEGIN, _END = "<!-- generated -->\n", "<!-- end -->\n"


def schema(model: type[Value]) -> str:
    """The schema of what is printed: every field with a default is there too."""
    for module in (marks, placement):
        _describe(module, extra="forbid")
    model.model_rebuild(force=True)
    document = model.model_json_schema(mode="serialization", by_alias=True)
    if intent := document.get("$defs", {}).get("Intent"):
        intent["additionalProperties"] = True  # those of each verb
    return _text(document)


def schema_of_dataclass(
    kind: type[
        BuildDocument
        | CheckDocument
        | Comparison
        | Holders
        | InventoryDocument
        | PlacementDocument
        | Vgpu
        | VgpuListDocument
        | VgpuTypesDocument
        | DomainListDocument
        | DomainShowDocument
        | Verification
    ],
) -> str:
    """The same for what is no pydantic model: the docstrings of its fields say what they mean."""
    printed = (document, functions, groups, placement, finding, build, listing, verification)
    for module in (marks, reservations, holders, *printed):
        _describe(module, extra="forbid")
    _describe(vgpu)
    return _text(TypeAdapter(kind).json_schema(mode="serialization", by_alias=True))


def schema_of_input(kind: type[DomainSpec | FleetSpec]) -> str:
    """The schema of what a user writes: fields with a default may be left out."""
    for module in (spec, fleet):
        _describe(module, extra="forbid")
    FleetSpec.model_rebuild(force=True)
    return _text(TypeAdapter(kind).json_schema())


def _describe(module: ModuleType, *, extra: Literal["forbid"] | None = None) -> None:
    config = ConfigDict(use_attribute_docstrings=True, extra=extra)
    for each in vars(module).values():
        if isinstance(each, type) and is_dataclass(each):
            setattr(each, "__pydantic_config__", config)  # noqa: B010 - it has none yet


def _text(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


def exit_codes(page: str) -> str:
    """The page with its table made anew from the error tree."""
    branches: list[type[VfioctlError]] = [VfioctlError, *_children(VfioctlError)]
    rows = [
        f"| {kind.exit_code} | `{kind.__name__}` | {_meaning(kind)} | {_names(kind)} |"
        for kind in sorted(branches, key=lambda kind: kind.exit_code)
    ]
    table = "\n".join(["| code | error | who must act, or what happened | kinds |", "|---|---|---|---|", *rows])
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n{table}\n\n{_END}{rest.split(_END)[1]}"


def _meaning(kind: type[VfioctlError]) -> str:
    """As the tree in the docstring of vfioctl.errors says it."""
    lines = (line for line in (errors.__doc__ or "").splitlines() if f" {kind.__name__} " in line)
    parts = next(lines, "").split(str(kind.exit_code), 1)[1:]
    return parts[0].strip() if parts else "anything else that can be explained"


def _names(kind: type[VfioctlError]) -> str:
    return "" if kind is VfioctlError else ", ".join(f"`{child.__name__}`" for child in _children(kind))


def _children(kind: type[VfioctlError]) -> list[type[VfioctlError]]:
    """Those of the tree itself, whatever other modules have been imported."""
    return [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]


def generated() -> dict[Path, str]:
    """Every generated file, with the content it should have."""
    page = REFERENCE / "exit-codes.md"
    return {
        REFERENCE / "inventory.schema.json": schema_of_dataclass(InventoryDocument),
        REFERENCE / "holders.schema.json": schema_of_dataclass(Holders),
        REFERENCE / "domain-check.schema.json": schema_of_dataclass(CheckDocument),
        REFERENCE / "domain-build.schema.json": schema_of_dataclass(BuildDocument),
        REFERENCE / "domain-diff.schema.json": schema_of_dataclass(Comparison),
        REFERENCE / "domain-verify.schema.json": schema_of_dataclass(Verification),
        REFERENCE / "domain-spec.schema.json": schema_of_input(DomainSpec),
        REFERENCE / "plan.schema.json": schema(Plan),
        REFERENCE / "place.schema.json": schema_of_dataclass(PlacementDocument),
        REFERENCE / "claim-create-dry-run.schema.json": schema(CreatePreview),
        REFERENCE / "claim-release-dry-run.schema.json": schema(ReleasePreview),
        REFERENCE / "history-show.schema.json": schema(JournalEntry),
        REFERENCE / "vgpu.schema.json": schema_of_dataclass(Vgpu),
        REFERENCE / "vgpu-list.schema.json": schema_of_dataclass(VgpuListDocument),
        REFERENCE / "vgpu-types.schema.json": schema_of_dataclass(VgpuTypesDocument),
        REFERENCE / "domain-list.schema.json": schema_of_dataclass(DomainListDocument),
        REFERENCE / "domain-show.schema.json": schema_of_dataclass(DomainShowDocument),
        REFERENCE / "fleet.schema.json": schema_of_input(FleetSpec),
        REFERENCE / "domain-apply.schema.json": schema(FleetDocument),
        REFERENCE / "domain-start.schema.json": schema(StartDocument),
        REFERENCE / "domain-start-preview.schema.json": schema(StartPreview),
        REFERENCE / "domain-stop.schema.json": schema(StopDocument),
        page: exit_codes(page.read_text()),
    }


if __name__ == "__main__":
    for path, content in generated().items():
        path.write_text(content)
