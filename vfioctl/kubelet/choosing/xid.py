"""NVIDIA's XIDs: which are a fault of the GPU, and which of the application that used it. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping

OF_APPLICATIONS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup, due to previous errors",
    68: "video processor exception",
    109: "context switch timeout",
}
"""The XIDs that leave a GPU healthy, as NVIDIA's device plugin has them (`internal/rm/health.go` of k8s-device-plugin).

NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) says to restart the
application for 13, 31 and 68, to ignore 43, and to follow the error that came before 45. For 109 it says to reset the
GPU since R570, and for 94 (a contained memory error, not in this list) to restart the application:
https://github.com/NVIDIA/k8s-device-plugin/issues/1974. Until that is decided, both are as in NVIDIA's plugin."""


def is_critical(xid: int) -> bool:
    """Whether the GPU may not be given to anyone after this error. One that is not known is critical."""
    return xid not in OF_APPLICATIONS
