"""Writes the parts of docs/reference that follow from the sources: the JSON schemas, the tables of exit codes and of
what commands print, the commands, the environment variables and the manual pages.

python -m docs.generate        writes them; tests/unit/test_documents.py says when that is due
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import is_typeddict

from docs import command_reference, documents
from docs.documents import OUTPUTS
from vfioctl.claims.model.preview_documents import CreatePreview, ReleasePreview
from vfioctl.console.manual.exit_codes import exit_codes
from vfioctl.console.manual.roff import roff
from vfioctl.core import marks, reservations
from vfioctl.core.change import JournalEntry, Outcome, Plan
from vfioctl.doctor.model import result
from vfioctl.doctor.model.result import DoctorDocument
from vfioctl.domain.model import build, finding, fleet, listing, spec, verification
from vfioctl.domain.model.build import BuildDocument, Comparison
from vfioctl.domain.model.finding import CheckDocument
from vfioctl.domain.model.fleet import FleetDocument, FleetSpec
from vfioctl.domain.model.listing import DomainListDocument, DomainShowDocument
from vfioctl.domain.model.running import StartDocument, StartPreview, StopDocument
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.domain.model.verification import Verification
from vfioctl.inventory.model import document, functions, holders, machine
from vfioctl.inventory.model.document import InventoryDocument
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holders
from vfioctl.overview.model.event import HostEvent
from vfioctl.placement.model import placement
from vfioctl.placement.model.placement import PlacementDocument
from vfioctl.sharing.model.enforcement import SharePlan
from vfioctl.state.model import difference
from vfioctl.state.model.document import HostState
from vfioctl.vgpu.model import vgpu
from vfioctl.vgpu.model.vgpu import Vgpu, VgpuListDocument, VgpuTypesDocument

REFERENCE = Path(__file__).resolve().parent / "reference"
MAN = Path(__file__).resolve().parents[1] / "man"
_BEGIN, _END = "<!-- generated -->\n", "<!-- end -->\n"


PRINTED: Mapping[str, Any] = {
    "cdi-export": documents.CdiExport,
    "cdi-list": documents.CdiFiles,
    "cdi-validate": documents.CheckedCdiFiles,
    "claim": documents.Claim,
    "claim-create-dry-run": CreatePreview,
    "claim-event": documents.WatchedEvent,
    "claim-release-dry-run": ReleasePreview,
    "claim-show": documents.ShownClaim,
    "claims": documents.Claims,
    "config-check": documents.CheckedConfig,
    "config-show": documents.Settings,
    "doctor": DoctorDocument,
    "domain-apply": FleetDocument,
    "domain-build": BuildDocument,
    "domain-check": CheckDocument,
    "domain-diff": Comparison,
    "domain-list": DomainListDocument,
    "domain-show": DomainShowDocument,
    "domain-start": StartDocument,
    "domain-start-preview": StartPreview,
    "domain-stop": StopDocument,
    "domain-verify": Verification,
    "error": documents.Error,
    "function": Function,
    "gpu-time": documents.GpuTime,
    "history": documents.History,
    "history-prune": documents.Pruned,
    "history-show": JournalEntry,
    "holders": Holders,
    "host-event": HostEvent,
    "hosts": documents.BundledHosts,
    "hosts-reboot": documents.RebootedHost,
    "hosts-reset": documents.ResetHost,
    "inventory": InventoryDocument,
    "kata-check": documents.KataCheck,
    "kubelet-cordon": documents.Cordoned,
    "kubelet-status": documents.KubeletStatus,
    "kubelet-uncordon": documents.Uncordoned,
    "mps-status": documents.MpsStatusFound,
    "mps-env": documents.MpsEnv,
    "mps-config": documents.MpsConfig,
    "oci-inject": documents.OciInjection,
    "outcome": Outcome,
    "outcomes": documents.Outcomes,
    "persist-list": documents.PersistList,
    "place": PlacementDocument,
    "plan": Plan,
    "reconcile": documents.Reconciliation,
    "recover-dry-run": documents.Repairs,
    "rom": documents.SavedRom,
    "share-allowed": documents.AllowedCgroups,
    "share-plan": SharePlan,
    "share-thaw": documents.ShareThaw,
    "state-apply": documents.StateChanges,
    "state-assert": difference.Comparison,
    "state-show": HostState,
    "vgpu": Vgpu,
    "vgpu-list": VgpuListDocument,
    "vgpu-restore": documents.VgpuRestore,
    "vgpu-types": VgpuTypesDocument,
}
"""What commands print, by the name of its schema."""
READ: Mapping[str, Any] = {"domain-spec": DomainSpec, "fleet": FleetSpec, "state": HostState}
"""What users write."""


class _Schema(GenerateJsonSchema):
    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: FBT001 - pydantic's signature
        if self.mode == "serialization" and field["type"] != "typed-dict-field":
            return not field.get("serialization_exclude")
        return super().field_is_required(field, total)


def schema(kind: Any, mode: Literal["serialization", "validation"]) -> str:
    """The schema of what is printed, in which every field is there; or of what is read, where defaults may be left out.

    The docstrings of fields say what they mean.
    """
    closed = (
        functions,
        machine,
        document,
        placement,
        finding,
        build,
        listing,
        verification,
        spec,
        fleet,
        documents,
        result,
        difference,
    )
    for module in (marks, reservations, holders, *closed):
        _describe(module, extra="forbid")
    _describe(vgpu)
    if hasattr(kind, "model_rebuild"):
        kind.model_rebuild(force=True)
    schema = TypeAdapter(kind).json_schema(mode=mode, by_alias=True, schema_generator=_Schema)
    if intent := schema.get("$defs", {}).get("Intent"):
        intent["additionalProperties"] = True  # those of each verb
    return _text(schema)


def _describe(module: ModuleType, *, extra: Literal["forbid"] | None = None) -> None:
    config = ConfigDict(use_attribute_docstrings=True, extra=extra)
    for kind in vars(module).values():
        if isinstance(kind, type) and (is_dataclass(kind) or is_typeddict(kind)) and kind.__module__ == module.__name__:
            setattr(kind, "__pydantic_config__", config)  # noqa: B010 - it has none yet


def _text(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


def _exit_code_table(page: str) -> str:
    """The page with its table made anew from the error tree."""
    rows = [
        f"| {code.code} | `{code.kind.__name__}` | {code.meaning} | {', '.join(f'`{name}`' for name in code.kinds)} |"
        for code in exit_codes()
    ]
    return _with_table(page, ("code", "error", "who must act, or what happened", "kinds"), rows)


def _outputs() -> Iterator[str]:
    for command, names in OUTPUTS.items():
        links = " or ".join(f"[{name}]({_file(name).name})" for name in names)
        yield f"| `{command}` | {links} |"


def _file(name: str) -> Path:
    return REFERENCE / f"{name}.schema.json"


def _with_table(page: str, titles: Sequence[str], rows: Iterable[str]) -> str:
    table = "\n".join([f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *rows])
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n{table}\n\n{_END}{rest.split(_END)[1]}"


def generated() -> dict[Path, str]:
    """Every generated file, with the content it should have."""
    page, outputs = REFERENCE / "exit-codes.md", REFERENCE / "json.md"
    return {
        **{_file(name): schema(kind, "serialization") for name, kind in PRINTED.items()},
        **{_file(name): schema(kind, "validation") for name, kind in READ.items()},
        outputs: _with_table(outputs.read_text(), ("command", "schema"), _outputs()),
        page: _exit_code_table(page.read_text()),
        **{MAN / f"{page.name}.1": roff(page) for page in command_reference.manual_pages()},
        REFERENCE / "commands.md": command_reference.commands(),
        REFERENCE / "environment.md": command_reference.environment(),
    }


if __name__ == "__main__":
    for path, content in generated().items():
        path.write_text(content)
