"""`vfioctl rom`: a device's expansion ROM, checked, and saved for a guest to boot with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, Device
from vfioctl.console.output import draw, emit_json, say, width
from vfioctl.console.writing import refuse_to_replace, write_whole
from vfioctl.errors import VerifyError

if TYPE_CHECKING:
    from vfioctl.binding.model.rom import Rom

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl rom gpu1 --simulate workstation
  vfioctl rom gpu1 --simulate workstation -o gpu1.rom
  vfioctl rom 0b:00.0 --simulate workstation -o gpu1.rom --force --json""",
)
def rom(
    ctx: typer.Context,
    device: Device,
    *,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    unsound: Annotated[bool, typer.Option("--unsound", help="Write it even when its checks fail.")] = False,
    as_json: AsJson = False,
) -> None:
    """Save a device's expansion ROM and check it.

    Says which images it holds, whether they are for this device, and whether their checksums are right. A ROM that is
    not sound is not written without --unsound: --force alone never puts a bad ROM in the place of a good one.
    """
    if output is not None:
        refuse_to_replace(output, force=force, otherwise="without -o the ROM is only checked")
    host = chosen(ctx).open()
    data, found = host.rom(device)
    if output is not None and (found.is_sound or unsound):
        write_whole(output, data)
    if as_json:
        _verify(found, output, unsound=unsound)
        emit_json({**found.model_dump(mode="json"), "sound": found.is_sound, "file": output})
        return
    from vfioctl.binding.render import rom_page

    draw(rom_page(found, width=width()))
    _verify(found, output, unsound=unsound)
    if output is not None:
        say(f"Written to {output}.")


def _verify(found: "Rom", output: Path | None, *, unsound: bool) -> None:
    """Raises VerifyError."""
    if not found.is_sound and not unsound:
        raise VerifyError(
            f"the ROM of {found.address} is not sound: {'; '.join(found.faults)}",
            hint="nothing was written; with --unsound it is, as it was read" if output else "",
            facts={"rom": found.model_dump(mode="json")},
        )
