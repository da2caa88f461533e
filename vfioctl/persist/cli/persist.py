"""`vfioctl persist`: what a boot restores. May not add behaviour to the api."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import carry_out, confirm_all, progress_lines, reporting
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.console.output import draw, emit, emit_document, width
from vfioctl.console.restored import tell_restored
from vfioctl.console.waiting import seconds_in
from vfioctl.errors import Drift
from vfioctl.persist.api import PersistApi
from vfioctl.persist.model.persistent import Owner, State

if TYPE_CHECKING:
    from vfioctl.persist.model.persistent import Persistent

app = group_app("persist")


@app.group_with_examples("""
  vfioctl bind gpu1 --persistent --simulate hgx8
  vfioctl persist list --simulate hgx8
  vfioctl persist restore --dry-run --simulate hgx8""")
def persist() -> None:
    """List, restore and remove what each boot restores.

    `bind --persistent`, `sriov set --persistent` and `vgpu create --persistent` write it down, each after it was
    verified. A device is known by its address, ids and slot; a boot that cannot tell it from another binds nothing.
    `vfioctl.disable` on the kernel command line, or the file /etc/vfioctl/disabled, turns all of this off."""


@app.with_examples(
    """
  vfioctl persist list --simulate hgx8
  vfioctl persist list --simulate t4 --json""",
    name="list",
)
def list_persistent(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """List what a boot restores, by whom, and whether it is there now.

    Includes devices that driverctl binds, mediated devices that mdevctl starts, and ids that vfio-pci is given."""
    _listed(ctx, as_json=as_json)


@app.with_examples("""
  vfioctl persist check --simulate hgx8
  vfioctl persist check --simulate hgx8 --json""")
def check(ctx: typer.Context, *, as_json: AsJson = False) -> None:
    """Check that all that vfioctl restores is there now. Exits with 4 if something is missing, moved or damaged, or if
    restoring is switched off.

    Also tells if the initramfs has vfioctl's hook, and is older than what is persistent: no reason to exit with 4."""
    entries, off = _listed(ctx, as_json=as_json)
    wrong = [entry for entry in entries if not entry.is_well]
    is_off = off and any(entry.owner is Owner.VFIOCTL for entry in entries)
    if (wrong or is_off) and as_json:
        raise typer.Exit(Drift.exit_code)
    if wrong:
        many = "1 entry is" if len(wrong) == 1 else f"{len(wrong)} entries are"
        can_be = any(entry.state is not State.FAILED for entry in wrong)
        raise Drift(
            f"{many} not as a boot should leave it",
            hint="" if can_be else "bind it anew with --persistent, or vfioctl persist remove",
            next_command="vfioctl persist restore --dry-run" if can_be else "",
        )
    if is_off:
        raise Drift("the next boot restores nothing", hint=off)


def _listed(ctx: typer.Context, *, as_json: bool) -> "tuple[Sequence[Persistent], str]":
    api = PersistApi(opened(ctx))
    entries, off, outdated = api.persistent(), api.switched_off(), api.outdated_initramfs()
    if as_json:
        emit_document({"persistent": entries, "switched_off": off, "outdated_initramfs": outdated})
    elif entries or off or outdated:
        from vfioctl.persist.render import persistent_page

        draw(persistent_page(entries, off, outdated, width=width()))
    else:
        emit("Nothing is persistent.")
    return entries, off


@app.with_examples("""
  vfioctl persist remove 43:00.0 --dry-run --simulate hgx8
  vfioctl persist remove 0000:43:00.0 --yes --simulate hgx8""")
def remove(
    ctx: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(metavar="DEVICE...", help="Addresses of devices or PFs, or UUIDs of vGPUs.", show_default=False),
    ],
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Remove definitions, so that the next boot does not restore these devices. Nothing changes before it.

    To unbind a device as well, use `vfioctl unbind --persistent`."""
    session = opened(ctx)
    carry_out(session, PersistApi(session).plan_remove(names), dry_run=dry_run, yes=yes, as_json=as_json)


@app.with_examples(
    """
  vfioctl persist import --dry-run --simulate workstation
  vfioctl persist import 6d3f2c1a --dry-run --simulate a2""",
    name="import",
)
def import_devices(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DEVICE|VGPU]...",
            help="Only these devices and vGPUs.",
            show_default=False,
        ),
    ] = None,
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Take over devices that driverctl or ids of vfio-pci bind to VFIO at boot, and vGPUs.

    The devices must be on VFIO now. driverctl's files for them are removed. Ids on the kernel command line and in
    /etc/modprobe.d stay: vfioctl changes neither; remove them yourself.

    A vGPU that exists is created at each boot from then on, and removed by `vfioctl vgpu remove`, whoever created it.
    Without names, these are the vGPUs that mdevctl creates at boot. Their definitions stay where mdevctl has them, and
    are vfioctl's: `vfioctl persist remove` and `vfioctl vgpu remove` delete them."""
    session = opened(ctx)
    carry_out(session, PersistApi(session).plan_import(names or ()), dry_run=dry_run, yes=yes, as_json=as_json)


@app.with_examples("""
  vfioctl persist restore --dry-run --simulate hgx8
  vfioctl persist restore --wait 60s --yes --simulate hgx8""")
def restore(
    ctx: typer.Context,
    *,
    wait: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Retry failures for this long, such as 60s: drivers may be missing yet."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Restore VFs, devices on VFIO, vGPUs and claims as a boot does.

    What is there already is left unchanged. A failure does not prevent the rest; all failures are listed at the end,
    and the exit code is that of the first."""
    session = opened(ctx)
    api, seconds = PersistApi(session), seconds_in(wait)
    if not (dry_run or yes):
        confirm_all(session, lambda: api.restore(dry_run=True).plans)
    with reporting():
        restored = api.restore(wait=seconds, progress=progress_lines(session), dry_run=dry_run)
    tell_restored(
        session, restored, all_there="All that is persistent is there.", failed="could not be restored", as_json=as_json
    )
