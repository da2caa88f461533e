"""The use cases of CDI files: plan one, write one elsewhere, list them all, and keep them in step with claims."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.cdi import KIND, cdi_file, device_name, file_name
from vfioctl.errors import BadDocument, Foreign, HostError, VfioctlError, some_of
from vfioctl.inventory.api import InventoryApi
from vfioctl.kernel.host_paths import CDI_ETC, CDI_RUN, MDEV_DEVICES

if TYPE_CHECKING:
    import sqlite3

    from vfioctl.claims.model.cdi import CdiDevice, Node
    from vfioctl.claims.model.claim import Claim
    from vfioctl.claims.model.difference import Difference
    from vfioctl.containers.cdi.choose import Passthrough
    from vfioctl.containers.cdi.files import CdiFileFound
    from vfioctl.containers.cdi.intent import CdiIntent
    from vfioctl.core.change import Outcome, Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu

_WRITTEN = """
    SELECT plan FROM journal WHERE state = 'done' AND instr(plan, '"cdi generate"') AND instr(plan, ?) ORDER BY id DESC
"""


@dataclass(frozen=True)
class Exported:
    """A CDI file that was written to a directory of the user's, or would be."""

    path: str
    text: str
    """Empty: no device is left, so there is no file."""
    devices: tuple[CdiDevice, ...]
    notes: tuple[str, ...]


class Claims(Protocol):
    """The methods of `ClaimsApi` by which containers get devices."""

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]: ...

    def claim(self, name: str) -> Claim: ...


class CdiApi:
    """The CDI files of one host, which follow its claims: see `vfioctl.claims.lifecycle.lifecycle.Follower`.
    Any method may raise any VfioctlError; each documents its own errors."""

    def __init__(self, session: Session, claims: Claims | None = None) -> None:
        self._session, self._kernel, self._claims = session, session.kernel, claims or ClaimsApi(session)

    def files(self) -> tuple[CdiFileFound, ...]:
        """Return the CDI files where container runtimes look for them, of all programs."""
        from vfioctl.containers.cdi.files import read_cdi_files

        return read_cdi_files(self._kernel)

    def names_of(self, kind: str) -> frozenset[str]:
        """Return the devices that CDI files name with a kind."""
        return frozenset(name for file in self.files() if file.kind == kind for name in file.devices)

    def holders(self) -> tuple[Mapping[str, str], str]:
        """Return the live claim of each device by the device's name, and why claims are not known, if so."""
        none: tuple[Claim, ...] = ()
        holders, problem = self._session.from_ledger(self._claims.claims, none)
        return {device_name(device.subject): claim.id for claim in holders for device in claim.devices}, problem

    def follow(self) -> str:
        """Write the files again, if the configuration says so; return why that failed."""
        try:
            if self._session.settings("claims").renew_cdi:
                self.renew(create=True)
        except VfioctlError as error:
            return f"the CDI files were not written again: {error.message}"
        return ""

    def differences(self, inventory: Inventory, mdevs: Sequence[Vgpu]) -> Iterator[Difference]:
        """Yield where vfioctl's files differ from the claims, and from these devices, which were just read."""
        if not (own := self._own()):
            return
        from vfioctl.containers.cdi.choose import differing, inferred, node_of, passthrough

        live = self._claims.claims()
        for file, known in own:
            intent = known or inferred(file, _held(live), passthrough(inventory, mdevs, node_of(file)))
            yield from differing(file, intent, live, passthrough(inventory, mdevs, intent.node))

    def renew(
        self, *, create: bool = False, progress: Progress | None = None, cancel: Cancel | None = None
    ) -> tuple[Outcome, ...]:
        """Write vfioctl's files again, each for what it was written for last, where that changes it.
        `create`: also the file of claimed devices, if there is none. Raises what `plan` and `Session.apply` raise."""
        from vfioctl.containers.cdi.choose import inferred, node_of
        from vfioctl.containers.cdi.intent import CdiIntent

        held = _held(self._claims.claims())
        intents = [
            known or inferred(file, held, read_passthrough(self._session, node_of(file))) for file, known in self._own()
        ]
        if create and KIND not in {intent.kind for intent in intents}:
            intents.append(CdiIntent())
        plans = (self._plan(intent)[0] for intent in intents)
        return tuple(
            self._session.apply(plan, progress=progress, cancel=cancel) for plan in plans if not plan.nothing_to_do
        )

    def _own(self) -> list[tuple[CdiFileFound, CdiIntent | None]]:
        """Return vfioctl's files, each with what it was written for last, if the journal has that.
        One that was written, and is gone, as after a reboot, has no devices."""
        from vfioctl.containers.cdi.files import CdiFileFound

        own = [file for file in self.files() if file.ours and file.path == cdi_file(file.kind)]
        files = [(file, self._written_for(file.kind)) for file in own]
        if KIND not in {file.kind for file in own} and (last := self._written_for(KIND)):
            files.append((CdiFileFound(cdi_file(KIND), kind=KIND, ours=True), last))
        return files

    def _written_for(self, kind: str) -> CdiIntent | None:
        """Return the request that the file of a kind was last written for; None if the journal does not have it."""

        def ask(db: sqlite3.Connection) -> str:
            row = db.execute(_WRITTEN, (f'"kind":"{kind}"',)).fetchone()
            return str(row[0]) if row else ""

        try:
            text = self._session.store.read(ask, "")
            if not text:  # importing the intent takes long
                return None
            from vfioctl.containers.cdi.intent import CdiIntent

            intent = self._session.registry.read_plan(text).intent
        except BadDocument:  # of an earlier release
            return None
        return intent if isinstance(intent, CdiIntent) and intent.kind == kind else None

    def plan_for_claim(self, kind: str, node: Node, claim: str) -> Plan:
        """Plan the file of a kind with the devices of one claim as they are now, and all others as they are in it."""
        from vfioctl.containers.cdi.intent import CdiIntent

        return self.plan(CdiIntent(kind=kind, node=node, claim=claim))

    def plan(self, intent: CdiIntent) -> Plan:
        """Plan the file in /var/run/cdi: written with these devices, or removed when there are none. Raises
        ConflictError for a name that another file defines, Foreign for a file that vfioctl did not write, HostError for
        a device of `intent.claim` without a node, and if no claimed device has one."""
        plan, missing = self._plan(intent)
        if missing and plan.nothing_to_do and not self._kernel.has(cdi_file(intent.kind)):
            _refuse_without_node(missing, intent)
        return plan

    def _plan(self, intent: CdiIntent) -> tuple[Plan, Sequence[Subject]]:
        """Return the plan, and the claimed devices that are not in the file because they have no node."""
        from vfioctl.containers.cdi.choose import notes
        from vfioctl.containers.cdi.files import text_of
        from vfioctl.containers.cdi.intent import CDI_FILE
        from vfioctl.core.change import Change, Draft

        path = cdi_file(intent.kind)
        before = self._kernel.read(path) if self._kernel.has(path) else ""
        devices, missing = self._devices(intent, path, before)
        after = text_of(intent.kind, devices)
        change = Change(kind=CDI_FILE, name=path, subject=intent.kind, before=before, after=after)
        draft = Draft(intent, changes=(change,) if before != after else (), notes=tuple(notes(devices, missing)))
        return self._session.registry.plan(draft), missing

    def export(self, intent: CdiIntent, directory: Path, *, dry_run: bool = False) -> Exported:
        """Write the file to another directory, or remove it there; see `plan`. It is not journaled."""
        from vfioctl.containers.cdi.choose import notes
        from vfioctl.containers.cdi.files import read_named, replace_named, text_of

        path = str(directory.absolute() / file_name(intent.kind))
        before = read_named(path)
        devices, missing = self._devices(intent, path, before)
        if missing and not (devices or before):
            _refuse_without_node(missing, intent)
        text = text_of(intent.kind, devices)
        if not dry_run:
            replace_named(path, text)
        return Exported(path, text, devices, tuple(notes(devices, missing)))

    def _devices(self, intent: CdiIntent, path: str, before: str) -> tuple[tuple[CdiDevice, ...], tuple[Subject, ...]]:
        """Return the devices of the file, and the claimed ones that cannot be in it."""
        from vfioctl.containers.cdi.choose import every_device, of_claims, with_claim, without_node
        from vfioctl.containers.cdi.files import devices_in, refuse_defined_elsewhere

        try:
            own = devices_in(before, intent.kind)
        except ValueError:
            hint = "vfioctl changes only its own CDI files: use another --kind, or remove that file"
            raise Foreign(f"{path} is not as vfioctl writes it", hint=hint) from None
        available = read_passthrough(self._session, intent.node)
        missing: tuple[Subject, ...] = ()
        if intent.claim:
            devices = with_claim(own, self._claims.claim(intent.claim), available, intent.node)
        elif intent.everything:
            devices = every_device(available, intent.node)
        else:
            claims = self._claims.claims(live_only=True)
            devices, missing = of_claims(claims, available, intent.node), without_node(claims, available)
        names = [device.name for device in devices]
        is_seen = path.rpartition("/")[0] in (CDI_ETC, CDI_RUN)
        others = [file for file in self.files() if is_seen or not file.ours]
        refuse_defined_elsewhere(others, intent.kind, names, besides=path)
        return devices, missing


def _refuse_without_node(missing: Sequence[Subject], intent: CdiIntent) -> None:
    raise HostError(
        f"no claimed device has a {intent.node} node of VFIO: {some_of(missing)}",
        hint="they are not bound to VFIO, or were not since a reboot: vfioctl reconcile says which",
        facts={"devices": [str(subject) for subject in missing]},
    )


def _held(claims: Sequence[Claim]) -> Collection[Subject]:
    return {device.subject for claim in claims for device in claim.devices}


def read_passthrough(session: Session, node: Node, inventory: Inventory | None = None) -> Passthrough:
    """Return the functions and mediated devices that have this kind of node. `inventory`: one that was just read."""
    from vfioctl.containers.cdi.choose import passthrough

    inventory, kernel = inventory or InventoryApi(session).inventory(nvml=False), session.kernel
    mdevs: list[Vgpu] = []
    if kernel.has(MDEV_DEVICES) and kernel.children(MDEV_DEVICES):
        from vfioctl.vgpu.api import VgpuApi

        mdevs = [vgpu for vgpu in VgpuApi(session).vgpus().instances if vgpu.dialect == "mdev"]
    return passthrough(inventory, mdevs, node)
