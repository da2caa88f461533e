"""`vfioctl rom`: checks a device's expansion ROM and saves it for a guest. May not add behaviour to the api."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.binding.api import BindingApi
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, device_argument
from vfioctl.console.output import (
    draw,
    emit_bytes,
    emit_document,
    refuse_terminal,
    refuse_to_replace,
    say,
    sketch,
    width,
    write_whole,
)
from vfioctl.errors import BadSpec, VerifyError

if TYPE_CHECKING:
    from vfioctl.binding.model.rom import Rom
from vfioctl.inventory.api import suggest_devices

app = App(add_completion=False)
_STDOUT = "-"


@app.with_examples("""
  vfioctl rom gpu1 --simulate workstation
  vfioctl rom gpu1 --simulate workstation -o gpu1.rom
  vfioctl rom gpu1 --simulate workstation -o - | sha256sum
  vfioctl rom 0b:00.0 --simulate workstation -o gpu1.rom --force --json""")
def rom(
    ctx: typer.Context,
    device: Annotated[str, device_argument(suggest_devices)],
    *,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE|-", help="Write it to FILE, or with - to stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    unsound: Annotated[bool, typer.Option("--unsound", help="Write the ROM even if its checks fail.")] = False,
    as_json: AsJson = False,
) -> None:
    """Save a device's expansion ROM and check it.

    Lists the images in the ROM, and checks that they are for this device and have correct checksums. A ROM that fails a
    check is written only with --unsound; --force alone never replaces a good ROM with a bad one. With -o - the ROM goes
    to stdout, and the list of its images to stderr."""
    file = _file(output, force=force, as_json=as_json)
    to_stdout = output == _STDOUT
    data, image = BindingApi(opened(ctx)).rom(device)
    if file is not None and (image.is_sound or unsound):
        write_whole(file, data)
    if as_json:
        _verify(image, output, unsound=unsound)
        emit_document({**image.model_dump(mode="json"), "sound": image.is_sound, "file": file})
        return
    from vfioctl.binding.render import rom_page

    page = rom_page(image, width=width())
    sketch(page) if to_stdout else draw(page)
    _verify(image, output, unsound=unsound)
    if to_stdout:
        emit_bytes(data)
    elif file is not None:
        say(f"Written to {file}.")


def _file(output: str | None, *, force: bool, as_json: bool) -> Path | None:
    """Return the file to write, if any, before anything is read. Raises BadSpec if the ROM could not be written."""
    if output == "":
        raise BadSpec("-o needs the name of a file, or - for stdout", hint="without -o the ROM is only checked")
    if output == _STDOUT:
        if as_json:
            raise BadSpec("--json and -o - both write to stdout", hint="name a file with -o")
        refuse_terminal("the ROM")
    elif output is not None:
        refuse_to_replace(Path(output), force=force, otherwise="without -o the ROM is only checked")
        return Path(output)
    return None


def _verify(found: "Rom", output: str | None, *, unsound: bool) -> None:
    if not found.is_sound and not unsound:
        raise VerifyError(
            f"the ROM of {found.address} is not sound: {'; '.join(found.faults)}",
            hint="nothing was written; --unsound writes it as it was read" if output else "",
            facts={"rom": found.model_dump(mode="json")},
        )
