"""How containers get the devices of claims: CDI files, OCI bundles and Kata, which share the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vfioctl.claims.cdi.api import CdiApi
from vfioctl.claims.kata.api import KataApi
from vfioctl.claims.oci.api import OciApi

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.session import Session


class Claims(Protocol):
    """The methods of `ClaimsApi` that they use."""

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]: ...

    def claim(self, name: str) -> Claim:
        """Raises BadSpec."""
        ...


class Containers:
    """CDI files, OCI bundles and Kata's settings for the devices of claims."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self.cdi = CdiApi(session, claims)
        self.oci = OciApi(session, claims)
        self.kata = KataApi(session, claims)
