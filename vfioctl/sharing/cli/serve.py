"""The commands serve and thaw of the group share. They may not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.options import AsJson, ConfigFile, use_config
from vfioctl.console.output import draw, emit, emit_document, settle, width, working
from vfioctl.console.waiting import seconds_in
from vfioctl.errors import BadSpec
from vfioctl.sharing.api import SharingApi

_SECONDS = 3.0
_LONGEST = 3600.0


def serve(
    ctx: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="Measure once, show the result, and change nothing.")] = False,
    seconds: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="With --once: how long to measure (3s).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Freeze nothing; log which control groups would be frozen.")
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure GPU time by control group, and freeze those that use more than their part, until a signal ends it.

    GPU time comes from NVML's process samples (nvidia) and from counters in fdinfo (amdgpu, i915, xe), each with what
    it may be off; of a GPU that is passed through, only the time of its claim is known.

    With throttle = true, a group that has used up its part is frozen by cgroup.freeze while others want the GPU. That
    is a duty cycle of its processes on the CPU: GPU work that was submitted runs to its end, memory of the GPU stays
    allocated, and a frozen rank of a distributed job stalls its peers. Groups are frozen for tenths of seconds to
    seconds. Never frozen: groups that are not listed, those of the system, of vfioctl, and of display servers. When
    this process ends, however it ends, a watchdog thaws all groups. While it runs, it has NVIDIA's GPUs open: leave out
    those that are to be bound (gpus in the configuration).

    Metrics for Prometheus are at /metrics, and need prometheus-client: vfioctl's extra "share". vfioctl-share.service
    is the unit for it."""
    if not once and (as_json or seconds):
        raise BadSpec(f"{'--json' if as_json else '--for'} needs --once")
    use_config(config)
    api = SharingApi(opened(ctx))
    if once:
        _show(api, _duration(seconds), as_json=as_json)
        return
    from vfioctl.serving.running import ended_by_signals, running

    with ended_by_signals() as is_stopping, running(is_stopping) as signs:
        settle()
        api.serve(stop=signs.stop, ready=signs.ready, dry_run=dry_run)


def thaw(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """Thaw control groups that a killed service and its killed watchdog left frozen.

    Needed only if both were killed, and not even by hand then: vfioctl-share.service does it when it has ended."""
    done = SharingApi(opened(ctx)).thaw()
    if as_json:
        emit_document({"thawed": list(done)})
    else:
        emit(f"thawed: {', '.join(done)}" if done else "No control group was left frozen.")


def _show(api: SharingApi, seconds: float, *, as_json: bool) -> None:
    working(f"measuring for {seconds:g} s")
    measurement = api.measure(seconds)
    settle()
    if as_json:
        from vfioctl.sharing.model.gpu_time import measurement_document

        emit_document(measurement_document(measurement))
        return
    from vfioctl.sharing.render.measurement import measurement_page

    draw(measurement_page(measurement, width=width()))


def _duration(text: str | None) -> float:
    seconds = seconds_in(text) if text else _SECONDS
    if not 1.0 <= seconds <= _LONGEST:
        raise BadSpec("--for: a duration from 1s to 1h is needed")
    return seconds
