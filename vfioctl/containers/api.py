"""The use cases of containers: CDI files, OCI bundles and Kata's settings for the devices of claims."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi

if TYPE_CHECKING:
    from vfioctl.containers.cdi.api import CdiApi
    from vfioctl.containers.kata.api import KataApi
    from vfioctl.containers.oci.api import OciApi
    from vfioctl.core.change import Intent, Plan
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
        from vfioctl.containers.oci.api import OciApi

        return OciApi(self._session, self._claims)

    @cached_property
    def kata(self) -> KataApi:
        """The settings that Kata Containers needs for VFIO devices, and their check."""
        from vfioctl.containers.kata.api import KataApi

        return KataApi(self._session, self._claims)

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent of this subsystem on the host as it is now: that of a CDI file is the only one."""
        from vfioctl.containers.cdi.intent import CdiIntent

        return self.cdi.plan(CdiIntent.model_validate(intent.model_dump()))
