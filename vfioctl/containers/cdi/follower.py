"""Keeps vfioctl's CDI files in step with claims. Registered in the table of subsystems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.containers.cdi.api import CdiApi
from vfioctl.errors import VfioctlError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vfioctl.claims.model.difference import SeenCdi
    from vfioctl.core.action import Progress
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu


class CdiFollower:
    """The CDI files of one host; see `vfioctl.claims.lifecycle.lifecycle.Follower`."""

    def __init__(self, session: Session) -> None:
        self._session, self._files = session, CdiApi(session, ClaimsApi(session))

    def follow(self) -> str:
        """Write the files again, if the configuration says so; return why that failed."""
        try:
            if self._session.settings("claims").renew_cdi:
                self._files.renew(create=True)
        except VfioctlError as error:
            return f"the CDI files were not written again: {error.message}"
        return ""

    def differences(self, inventory: Inventory, mdevs: Sequence[Vgpu]) -> Iterable[SeenCdi]:
        """Return where the files differ from the claims, and from these devices."""
        return self._files.differing(inventory, mdevs)

    def renew(self, *, progress: Progress | None = None) -> None:
        """Write again the files that differ."""
        self._files.renew(progress=progress)
