"""The step that checks again for holders before a vGPU or VFs are removed."""

from __future__ import annotations

from vfioctl.core.change import Change, Phase, Step


def unheld(change: Change, why: str, *, action: str = "unheld") -> Step:
    """The step that fails when the subject, or with the action `unheld VFs` one of its VFs, is held."""
    return Step(phase=Phase.CHECK, action=action, target=change.subject, why=why)
