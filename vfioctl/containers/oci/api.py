"""The use case of OCI bundles: give a container the devices of a claim."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfioctl.claims.model.cdi import CONTROL_NODE, GROUP_NODE, Node
from vfioctl.errors import BadDocument, ConflictError, HostError
from vfioctl.untrusted_text import parse_json

if TYPE_CHECKING:
    from vfioctl.containers.model.claims import Claims
    from vfioctl.containers.oci.document import DeviceNode
    from vfioctl.session import Session

MOST_STATE = 1 << 20
_BUNDLE = re.compile(r"/[^\0]{0,4095}")


@dataclass(frozen=True)
class Injected:
    """The result: what was changed in a config.json, or would be; nothing if it was as wanted."""

    bundle: str
    claim: str
    nodes: tuple[str, ...]
    changes: tuple[str, ...]


class OciApi:
    """Edits OCI bundles for one host. Any method may raise any VfioctlError; each documents its own errors."""

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
        """Return the claim's id, and its nodes with their numbers."""
        from vfioctl.containers.cdi.api import read_passthrough
        from vfioctl.containers.cdi.choose import devices_of
        from vfioctl.containers.oci.document import DeviceNode, with_control

        held = self._claims.claim(claim)
        if not held.is_live:
            raise ConflictError(f"claim {held.id} is {held.state}", hint="vfioctl claim create makes a new one")
        devices = devices_of(held, read_passthrough(self._session, node), node)
        if not devices:
            raise HostError(f"claim {held.id} has no device that a container could get")

        def numbered(path: str) -> DeviceNode:
            kind, major, minor = self._kernel.device_number(path)
            if kind != "c":
                raise HostError(f"{path} is no character device")
            return DeviceNode(path, major, minor)

        legacy = any(GROUP_NODE.fullmatch(device.node) for device in devices)
        control = numbered(CONTROL_NODE) if legacy else None
        return held.id, with_control([numbered(device.node) for device in devices], control)


def bundle_in(state: bytes) -> Path | None:
    """Return the bundle in a container's state, as a hook gets it on stdin; None for a configuration.

    Raises BadDocument for neither.
    """
    problem = "what comes on stdin is neither a container's state nor its configuration"
    try:
        document: Any = parse_json(state, strict=True)
    except ValueError as error:
        raise BadDocument(f"{problem}: {error}") from None
    if isinstance(document, dict):
        if isinstance(document.get("bundle"), str) and _BUNDLE.fullmatch(document["bundle"]):
            return Path(document["bundle"])
        if "ociVersion" in document and "process" in document:
            return None
    raise BadDocument(
        problem,
        hint="as a hook, it has the path of the bundle; by hand, name the bundle",
    )
