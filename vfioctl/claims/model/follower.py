"""What subsystems above keep in step with claims, as a protocol. May not do input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vfioctl.claims.model.difference import SeenCdi
    from vfioctl.core.action import Progress
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu


class Follower(Protocol):
    """Files that follow the claims of one host. A row of the table of subsystems names its class."""

    def __init__(self, session: Session) -> None: ...

    def follow(self) -> str:
        """Bring the files up to date after claims changed, if the configuration says so; return why that failed."""
        ...

    def differences(self, inventory: Inventory, mdevs: Sequence[Vgpu]) -> Iterable[SeenCdi]:
        """Return where the files differ from the claims, and from these devices, which were just read."""
        ...

    def renew(self, *, progress: Progress | None = None) -> None:
        """Write again the files that differ. Raises what planning and applying raise."""
        ...
