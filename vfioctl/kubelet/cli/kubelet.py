"""`vfioctl kubelet`: the device plugin of a Kubernetes node. May not add behaviour to the api."""

import math
import os
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, ConfigFile, completion, use_config
from vfioctl.console.output import draw, emit, emit_document, say, settle, width
from vfioctl.console.waiting import seconds_in
from vfioctl.errors import BadSpec
from vfioctl.kubelet.api import KubeletApi, suggest_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfioctl.claims.model.claim import Claim

app = group_app("kubelet")
Devices = Annotated[
    list[str],
    typer.Argument(
        metavar="DEVICE...",
        help="Addresses, UUIDs of vGPUs, or names such as gpu0.",
        autocompletion=completion(suggest_devices),
    ),
]


@app.group_with_examples("""
  vfioctl kubelet status --simulate hgx8
  vfioctl kubelet cordon gpu0 --wait 10m --simulate hgx8""")
def kubelet() -> None:
    """Give devices to pods of Kubernetes, as a device plugin of the kubelet.

    The table kubelet of the configuration names the resources; the ledger of claims says which pod has which device,
    beside virtual machines and other users of this host."""


@app.with_examples("""
  vfioctl kubelet serve
  vfioctl kubelet serve --config node.toml --simulate hgx8.host""")
def serve(ctx: typer.Context, *, config: ConfigFile = None) -> None:
    """Serve the resources of this node to the kubelet, until a signal ends it.

    A pod's devices are claimed first, then bound or created, and verified. They are put back when the pod is gone.
    SIGTERM ends the service: calls that run are finished, and pods keep their devices. vfioctl-kubelet.service is the
    unit for it. Needs grpclib, protobuf and prometheus-client: vfioctl's extra "kubelet"."""
    from vfioctl.serving.running import ended_by_signals, running

    use_config(config)
    api = KubeletApi(opened(ctx))
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's own library reports each kubelet that ends
    with ended_by_signals() as is_stopping, running(is_stopping) as signs:
        settle()
        api.serve(stop=signs.stop, ready=signs.ready)


@app.with_examples("""
  vfioctl kubelet status
  vfioctl kubelet status --json | jq -r '.resources[].devices[] | select(.healthy | not) | .reason'""")
def status(ctx: typer.Context, *, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show resources, their devices with health and pods, registration, and the last failures.

    An unhealthy device has its reason beside it. Works without the service, too: devices are looked at anew."""
    use_config(config)
    found = KubeletApi(opened(ctx)).status()
    if as_json:
        from vfioctl.kubelet.model.status import status_document

        emit_document(status_document(found))
    elif not found.resources:
        from vfioctl.kubelet.render.status import NO_RESOURCE

        emit(NO_RESOURCE)
    else:
        from vfioctl.kubelet.render.status import status_page

        draw(status_page(found, width=width()))


@app.with_examples("""
  vfioctl kubelet cordon gpu0 --why 'fan is loud' --no-wait
  vfioctl kubelet cordon 0000:1b:00.0 --wait 30m && vfioctl unbind 0000:1b:00.0""")
def cordon(
    ctx: typer.Context,
    devices: Devices,
    *,
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, which kubelet status shows.")] = "",
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="DURATION", help="Wait for at most DURATION (60s, 10m), then exit with 4."),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the pods that have them.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Give devices to no more pods, and wait for the end of those that have them.

    The kubelet sees the devices as unhealthy at once. A pod that has one keeps it until it ends; the devices can be
    bound, unbound and reset then. Ctrl-C stops the waiting: the devices stay cordoned."""
    if wait and no_wait:
        raise BadSpec("--wait and --no-wait exclude each other", hint="give one of them")
    use_config(config)
    api = KubeletApi(opened(ctx))
    told: set[str] = set()

    def waiting(claims: "Sequence[Claim]", left: float) -> None:
        for claim in claims:
            if claim.id not in told:
                told.add(claim.id)
                limit = "" if math.isinf(left) else f" for up to {left:.0f} s"
                say(f"waiting{limit}: {claim.owner} has {claim.asked[0]}")

    seconds = 0 if no_wait else max(seconds_in(wait), _SHORTEST) if wait else math.inf
    subjects = api.cordon(devices, why=why, wait=seconds, waiting=waiting)
    if as_json:
        emit_document({"cordoned": [str(subject) for subject in subjects]})
    else:
        emit(f"cordoned: {', '.join(map(str, subjects))}")


@app.with_examples("""
  vfioctl kubelet uncordon gpu0""")
def uncordon(ctx: typer.Context, devices: Devices, *, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Give devices to pods again, also after an error that NVML has reported."""
    use_config(config)
    subjects = KubeletApi(opened(ctx)).uncordon(devices)
    if as_json:
        emit_document({"uncordoned": [str(subject) for subject in subjects]})
    else:
        emit(f"uncordoned: {', '.join(map(str, subjects))}" if subjects else "None of these devices was cordoned.")


_SHORTEST = 0.001
"""Seconds of --wait 0s, which waits for nobody and fails if a pod has a device."""
