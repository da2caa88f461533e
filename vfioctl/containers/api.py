"""The use cases of containers: CDI files, OCI bundles and Kata's settings for the devices of claims.
Any method may raise any VfioctlError; each documents its own errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.cdi import CONTROL_NODE, GROUP_NODE, Node
from vfioctl.errors import ConflictError, HostError

if TYPE_CHECKING:
    from pathlib import Path

    from vfioctl.containers.cdi.api import CdiApi, Claims
    from vfioctl.containers.cdi.choose import Passthrough
    from vfioctl.containers.kata.check import Finding
    from vfioctl.containers.oci.document import DeviceNode
    from vfioctl.core.change import Intent, Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session


class ContainersApi:
    """How the containers of one host get the devices of claims."""

    def __init__(self, session: Session) -> None:
        self._session, self._claims = session, ClaimsApi(session)

    @cached_property
    def cdi(self) -> CdiApi:
        """CDI files, which name devices for container runtimes."""
        from vfioctl.containers.cdi.api import CdiApi

        return CdiApi(self._session, self._claims)

    @cached_property
    def oci(self) -> OciApi:
        """OCI bundles, whose containers get the devices of a claim."""
        return OciApi(self._session, self._claims)

    @cached_property
    def kata(self) -> KataApi:
        """The settings that Kata Containers needs for VFIO devices, and their check."""
        return KataApi(self._session, self._claims)

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent of this subsystem on the host as it is now: that of a CDI file is the only one."""
        from vfioctl.containers.cdi.intent import CdiIntent

        return self.cdi.plan(CdiIntent.model_validate(intent.model_dump()))


@dataclass(frozen=True)
class Injected:
    """What was changed in a config.json, or would be; nothing if it was as wanted."""

    bundle: str
    claim: str
    nodes: tuple[str, ...]
    changes: tuple[str, ...]


class OciApi:
    """Edits OCI bundles for one host."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session, self._kernel, self._claims = session, session.kernel, claims

    def inject(self, bundle: Path, claim: str, *, node: Node = Node.GROUP, dry_run: bool = False) -> Injected:
        """Edit the config.json of a bundle. Raises BadDocument, ConflictError, HostError."""
        from vfioctl.containers.oci.bundle import opened_config, replace_config
        from vfioctl.containers.oci.document import injected, read_config, written

        name, devices = self._nodes(claim, node)
        with opened_config(bundle) as opened:
            edited = injected(read_config(opened.data), name, devices)
            if edited.changes and not dry_run:
                replace_config(opened, written(edited.document, opened.data))
        return Injected(str(bundle), name, tuple(device.path for device in devices), edited.changes)

    def filter(self, config: bytes, claim: str, *, node: Node = Node.GROUP) -> bytes:
        """Return a config.json edited, as a precreate hook of podman does. Raises BadDocument, ConflictError."""
        from vfioctl.containers.oci.document import injected, read_config, written

        name, devices = self._nodes(claim, node)
        return written(injected(read_config(config), name, devices).document, config)

    def _nodes(self, claim: str, node: Node) -> tuple[str, tuple[DeviceNode, ...]]:
        """Return the claim's id, and its nodes with their numbers, in the order in which runtimes expect them."""
        from vfioctl.containers.cdi.api import read_passthrough
        from vfioctl.containers.cdi.choose import devices_of
        from vfioctl.containers.oci.document import DeviceNode

        held = self._claims.claim(claim)
        if not held.is_live:
            raise ConflictError(f"claim {held.id} is {held.state}", hint="vfioctl claim create makes a new one")
        paths = [device.node for device in devices_of(held, read_passthrough(self._session, node), node)]
        if not paths:
            raise HostError(f"claim {held.id} has no device that a container could get")
        if any(map(GROUP_NODE.fullmatch, paths)):
            paths.insert(0, CONTROL_NODE)
        nodes = []
        for path in dict.fromkeys(paths):
            kind, major, minor = self._kernel.device_number(path)
            if kind != "c":
                raise HostError(f"{path} is no character device")
            nodes.append(DeviceNode(path, major, minor))
        return held.id, tuple(nodes)


class KataApi:
    """Kata's settings for devices on one host, and the check of all that must fit together."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session, self._kernel, self._claims = session, session.kernel, claims

    def config(self, *, claim: str | None = None, mode: str = "guest-kernel", node: Node = Node.GROUP) -> str:
        """Return a drop-in for the devices of a claim, or for all on VFIO. Raises HostError for too many, BadSpec."""
        from vfioctl.containers.kata.settings import drop_in, needs_of

        inventory, _, subjects = self._devices(claim, node)
        return drop_in(needs_of(inventory, subjects, node), mode=mode)

    def check(
        self,
        config: Path | None = None,
        *,
        claim: str | None = None,
        node: Node = Node.GROUP,
        inventory: Inventory | None = None,
    ) -> tuple[Finding, ...]:
        """Return the lines of the check, for the devices of a claim, or for all on VFIO. `inventory`: of the whole
        host, if it has just been read. Raises BadSpec."""
        from vfioctl.containers.cdi.files import read_cdi_files
        from vfioctl.containers.kata.check import Host, findings
        from vfioctl.containers.kata.settings import needs_of, read_kata
        from vfioctl.inventory.api import InventoryApi
        from vfioctl.kernel.lenient import number_of

        inventory, available, subjects = self._devices(claim, node, inventory)
        host = Host(
            inventory,
            subjects,
            needs_of(inventory, subjects, node),
            read_cdi_files(self._kernel),
            InventoryApi(self._session).processor().address_bits,
            available.nodes,
            {path: number_of(self._kernel, path).removeprefix("c ") for path in available.nodes.values()},
            node,
            claim is not None,
        )
        return findings(read_kata(self._kernel, config), host)

    def _devices(
        self, claim: str | None, node: Node, inventory: Inventory | None = None
    ) -> tuple[Inventory, Passthrough, tuple[Subject, ...]]:
        from vfioctl.containers.cdi.api import read_passthrough
        from vfioctl.containers.cdi.choose import claimed, every_device
        from vfioctl.inventory.api import InventoryApi

        inventory = inventory or InventoryApi(self._session).inventory(nvml=False)
        available = read_passthrough(self._session, node, inventory)
        if claim is not None:
            return inventory, available, claimed(self._claims.claim(claim), node)
        return inventory, available, tuple(device.subject for device in every_device(available, node))
