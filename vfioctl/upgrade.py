"""Converts the plans in a ledger of vfioctl 0.1 to the current format.

Open entries must stay recoverable, and `unbind` needs the records. Plan files of 0.1 are refused by their version. No
other module may know the old format.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from vfioctl.core.migrations import Migration
from vfioctl.errors import VfioctlError

MIGRATIONS = (Migration(4, run="vfioctl.upgrade:upgrade_plans"),)
_OLD = 1
_LATE = ("power", "d3cold", "console", "framebuffer", "persistence", "service")
_BINDING_FIELDS = ("driver", "with_group", "force_holders")
_INTENTS: Mapping[str, tuple[str, ...]] = {
    "bind": (*_BINDING_FIELDS, "allow_boot_vga", "stop_services"),
    "unbind": _BINDING_FIELDS,
    "reset": ("method", "force_holders"),
    "vgpu create": (),
    "vgpu remove": ("force_holders",),
    "sriov set": ("force_holders",),
    "sriov profile": (),
}
_REQUESTS: Mapping[str, Mapping[str, str]] = {
    "vgpu create": {
        "type": "type",
        "parent": "parent",
        "numa": "numa",
        "count": "count",
        "placement": "placement",
        "uuids": "uuids",
        "parameters": "parameters",
        "persistent": "persistent",
        "shun": "exclude",
    },
    "vgpu remove": {"instances": "vgpus", "foreign": "foreign"},
    "sriov set": {"vfs": "vfs", "foreign": "foreign", "persistent": "persistent"},
    "sriov profile": {"parameters": "parameters"},
}
_WITHOUT_DEVICES = ("vgpu create", "vgpu remove")


def upgrade_plans(db: sqlite3.Connection) -> None:
    """Rewrite every plan in the journal. Raises sqlite3.DatabaseError for an entry without a valid plan."""
    from vfioctl.core.registry import Registry
    from vfioctl.subsystems import SUBSYSTEMS

    registry = Registry(SUBSYSTEMS)
    for entry, text in db.execute("SELECT id, plan FROM journal").fetchall():
        try:
            document = json.loads(text)
            if document["version"] != _OLD:
                continue
            plan = upgraded(document, registry)
        except (ValueError, TypeError, LookupError, RecursionError, VfioctlError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[-1][:200]
            raise sqlite3.DatabaseError(f"entry {entry} holds no plan: {reason}") from None
        db.execute("UPDATE journal SET plan = ? WHERE id = ?", (plan, entry))


def upgraded(old: Mapping[str, Any], registry: Any) -> str:
    """Return a plan of 0.1 as JSON in the current format. Its steps are derived from its changes again."""
    from vfioctl.core.change import Change, CheckRequest, Draft, Fact

    draft = Draft(
        intent=registry.intent(_intent(old["intent"])),
        facts=tuple(Fact(**fact) for fact in _facts(old)),
        changes=tuple(Change(**change) for change in _changes(old)),
        checks=tuple(CheckRequest(kind=kind, subjects=tuple(subjects)) for kind, subjects in _checks(old)),
        notes=tuple(old["notes"]),
    )
    return str(registry.plan(draft).model_dump_json())


def _intent(old: Mapping[str, Any]) -> Mapping[str, Any]:
    verb = old["verb"]
    request = old.get("slicing") or {}
    found = {name: old[name] for name in _INTENTS[verb] if name in old}
    found |= {new: request[name] for name, new in _REQUESTS.get(verb, {}).items() if name in request}
    if verb not in _WITHOUT_DEVICES:
        found["devices"] = old["devices"]
    return {"verb": verb, **found}


def _facts(old: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for fact in old["facts"]:
        values = {"identity": fact["identity"], "iommu_group": fact["iommu_group"], **fact["binding"]}
        yield {"kind": "function", "subject": fact["address"], "values": values}


def _checks(old: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    if old["viable_groups"]:
        yield "viable", [str(group) for group in old["viable_groups"]]
    if old["intent"]["verb"] in ("unbind", "reset"):
        yield "answers", [change["address"] for change in old["changes"]]
    if old.get("cards"):
        yield "vGPUs", list(old["cards"])


def _changes(old: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    addresses = [change["address"] for change in old["changes"]]
    for step in old["steps"]:
        if step["kind"] == "load":
            yield _change("module", step["target"], addresses[0], "", "loaded")
    to_vfio = {change["address"] for change in old["changes"] if old["intent"]["verb"] == "bind"}
    for setting in old["settings"]:
        yield _setting(setting, firm=setting["address"] in to_vfio)
        if setting["kind"] == "NVIDIA VFs" and setting["before"] != setting["after"]:
            # sriov-manage unbinds the GPU from its driver for a moment; plans of 0.1 did not record that
            yield from _kept(old, setting["address"])
    for change in old["changes"]:
        before, after = _binding(change["before"]), _goal(change["after"], old["intent"]["driver"])
        yield _change("binding", change["address"], change["address"], before, after)
    if old["reset"]:
        yield _change("reset", old["reset"], old["intent"]["devices"][0], "", " ".join(addresses))


def _kept(old: Mapping[str, Any], address: str) -> Iterator[dict[str, Any]]:
    """Return an unchanged binding of a function."""
    for fact in old["facts"]:
        if fact["address"] == address:
            binding = _binding(fact["binding"])
            yield _change("binding", address, address, binding, binding)


def _setting(old: Mapping[str, Any], *, firm: bool) -> dict[str, Any]:
    found = _change(old["kind"], old["name"], old["address"], old["before"], old["after"])
    found["during"] = old["during"]
    found["may_fail"] = (old["kind"] in _LATE and not firm) or old["kind"] == "reset method"
    return found


def _change(kind: str, name: str, subject: str, before: str, after: str) -> dict[str, Any]:
    return {"kind": kind, "name": name, "subject": subject, "before": before, "after": after}


def _binding(old: Mapping[str, Any]) -> str:
    from vfioctl.binding.model.binding import Binding

    return Binding(old["driver"], old["driver_override"]).text


def _goal(old: Mapping[str, Any], asked: str | None) -> str:
    """Return the goal binding, with alternative driver names, which 0.1 did not record."""
    from vfioctl.binding.model.binding import Binding

    goal = Binding(old["driver"], old["driver_override"])
    if goal.driver is None or goal.driver == "vfio-pci" or not (goal.on_vfio or goal.driver == asked):
        return goal.text
    others = dict.fromkeys((goal.driver.replace("_", "-"), goal.driver.replace("-", "_")))
    return goal._replace(spellings=tuple(name for name in others if name != goal.driver)).text
