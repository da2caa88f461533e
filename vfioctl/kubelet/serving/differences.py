"""Compares the kubelet's pods with the ledger's claims, for `vfioctl reconcile`. May not change anything. Where the
configuration has no table for it, this imports no pydantic, which takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    from vfioctl.claims.model.difference import Difference
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.kubelet.model.settings import KubeletSettings
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu

_TABLE = "kubelet"
_SECONDS = 5.0
"""Timeout of the question about pods."""


class KubeletFollower:
    """See `vfioctl.claims.lifecycle.lifecycle.Follower`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def follow(self) -> str:
        """Do nothing: the service sees that the ledger has changed."""
        return ""

    def differences(self, inventory: Inventory, mdevs: Sequence[Vgpu]) -> Iterator[Difference]:
        """Yield where the kubelet and the ledger differ about which pod has a device."""
        del inventory, mdevs
        settings = self._settings()
        if settings is None:
            return
        try:
            from vfioctl.kubelet.serving.pods import ask_once
        except ImportError:
            return
        from vfioctl.claims.api import ClaimsApi
        from vfioctl.kubelet.allocating.following import claims_of_pods
        from vfioctl.kubelet.choosing.owners import differences, verdicts

        if listing := ask_once(settings.pod_resources, _SECONDS):
            said = verdicts(claims_of_pods(ClaimsApi(self._session)), listing)
            yield from differences(said, listing, settings.names)

    def _settings(self) -> KubeletSettings | None:
        """Return the settings of a host that serves resources to a kubelet that can be asked."""
        try:
            settings: KubeletSettings = self._session.settings(_TABLE)
            can_be_asked = bool(settings.resources) and Path(settings.pod_resources).is_socket()
        except (BadSpec, OSError):  # `vfioctl config check` tells; an ordinary user may not enter the directory
            return None
        return settings if can_be_asked else None

    def renew(self, *, progress: object = None, cancel: object = None) -> None:
        """Do nothing: a pod's devices are not changed to fit the ledger."""
