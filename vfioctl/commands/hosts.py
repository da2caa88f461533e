"""`vfioctl hosts`: lists and resets the bundled hosts, and reboots simulated ones. May not touch this machine."""

from pathlib import Path
from typing import Annotated

import typer

from vfioctl.console.lazy import App, Group
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit, emit_document

app = App(name="hosts", cls=Group, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")


@app.group_with_examples("""
  vfioctl hosts
  vfioctl inventory --simulate workstation
  vfioctl hosts --reset workstation
  vfioctl hosts reboot workstation""")
def hosts(
    ctx: typer.Context,
    *,
    reset: Annotated[
        str | None, typer.Option("--reset", metavar="NAME", help="Restore a simulated host to its initial state.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the bundled hosts for --simulate and --host.

    Changes made with --simulate are kept in your own copy of the host until --reset restores its initial state."""
    from vfioctl.kernel.recorded.bundled import bundled_hosts
    from vfioctl.kernel.simulated.files import reset_simulated

    if ctx.invoked_subcommand is not None:
        return
    if reset is not None:
        file = reset_simulated(reset)
        emit_document({"name": reset, "file": file}) if as_json else emit(f"{reset} was restored to its initial state.")
        return
    bundled = {name: _about(file) for name, file in bundled_hosts().items()}
    if as_json:
        emit_document({"hosts": [{"name": name, "description": about} for name, about in bundled.items()]})
        return
    from vfioctl.console.columns import fact_grid

    draw(fact_grid(bundled.items(), style="bold"))


@app.with_examples("""
  vfioctl hosts reboot hgx8""")
def reboot(
    host: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A simulated host: a bundled name or its file.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Reboot a simulated host.

    It gets a new boot id. Drivers, settings, VFs and mediated devices return to their initial state; writes that never
    returned end. The ledger and persistent definitions stay; `vfioctl recover` closes changes that the reboot
    interrupted."""
    from uuid import uuid4

    from vfioctl.kernel.simulated.files import simulated_file
    from vfioctl.kernel.simulated.host import Simulated

    file, boot_id = simulated_file(host), str(uuid4())
    Simulated.at(file).reboot(boot_id)
    emit_document({"name": host, "file": file, "boot_id": boot_id}) if as_json else emit(f"{host} was rebooted.")


def _about(file: Path) -> str:
    with file.open(encoding="utf-8") as text:
        text.readline()
        return text.readline().lstrip("# ").partition(";")[0].strip()
