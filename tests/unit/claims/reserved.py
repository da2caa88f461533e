"""What happens between the reservation of a claim and its change, for tests of claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vfioctl.core.change import Outcome, Plan
from vfioctl.host import Host
from vfioctl.session import Session


def once_reserved(host: Host, then: Callable[[Plan], None]) -> Host:
    """The host, on which `then` is called before each change."""

    class Then(Session):
        def apply(self, plan: Plan, **more: Any) -> Outcome:
            then(plan)
            return super().apply(plan, **more)

    host.session.__class__ = Then
    return host
