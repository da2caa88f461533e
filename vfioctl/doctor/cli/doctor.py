"""`vfioctl doctor`: shows what stops or harms passthrough. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import on_this_host, opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, device_argument
from vfioctl.console.output import draw, emit_document
from vfioctl.doctor.api import DoctorApi
from vfioctl.inventory.api import suggest_devices

app = App(add_completion=False)
_PROBLEMS, _UNKNOWN = 1, 2


@app.with_examples("""
  vfioctl doctor --simulate hgx8 || true
  vfioctl doctor gpu0 --simulate workstation || true
  vfioctl doctor --json --simulate iommu-off || true""")
def doctor(
    ctx: typer.Context,
    devices: Annotated[
        list[str] | None,
        device_argument(suggest_devices, meaning="Check only these, their companions, and the host."),
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show what was read where all is well, and checks that do not apply.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check what stops or harms passthrough on this host, and name a remedy for each problem.

    Checks the IOMMU, VFIO, groups, BARs, reset, memory, planned guests, services, the ledger, containers, and what a
    boot restores. Each finding says what it means, what was read, and what mends it. A `fail` stops or harms
    passthrough; `unknown` could not be told; a `note` is worth knowing. Without root, some files cannot be read. Exits
    with 1 if there are problems, with 2 if there are none but something could not be told."""
    document = DoctorApi(opened(ctx)).examine(devices or ())
    if as_json:
        emit_document(document)
    else:
        from vfioctl.doctor.render.page import doctor_page

        draw(doctor_page(document, everything=everything, command=on_this_host))
    if not document.ok:
        raise typer.Exit(_PROBLEMS if document.failed else _UNKNOWN)
