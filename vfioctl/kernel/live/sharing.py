"""The services of this machine that share GPUs between control groups. May not decide what is frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from vfioctl.kernel.gpu_sharing import ControlGroups, DrmClients, ProcessGroups, SampleFeed, ThawWatchdog
from vfioctl.kernel.live.control_groups import LiveControlGroups, LiveProcessGroups, hierarchy


class LiveSharing:
    """See `vfioctl.kernel.gpu_sharing.GpuSharing`."""

    @cached_property
    def _root(self) -> str:
        return hierarchy()

    def control_groups(self) -> ControlGroups:
        return LiveControlGroups(self._root)

    def process_groups(self, name_of: Callable[[str | None], str]) -> ProcessGroups:
        return LiveProcessGroups(name_of)

    def drm_clients(self) -> DrmClients:
        from vfioctl.kernel.live.drm_fdinfo import LiveDrmClients

        return LiveDrmClients()

    def process_samples(self, gpus: Sequence[str], period: float) -> SampleFeed:
        from vfioctl.kernel.live.process_samples import SampledGpus

        return SampledGpus(gpus, period)

    def thaw_watchdog(self) -> ThawWatchdog:
        from vfioctl.kernel.live.thaw_watchdog import LiveThawWatchdog

        return LiveThawWatchdog(self._root)

    def thaw_abandoned(self) -> Mapping[str, str]:
        from vfioctl.kernel.live.thaw_watchdog import thaw_abandoned

        return thaw_abandoned(self._root)
