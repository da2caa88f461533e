"""`vfioctl kata`: Kata's settings for devices, and their check. May not add behaviour to the api."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vfioctl.claims.api import suggest_claims
from vfioctl.claims.model.cdi import Node
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, completion
from vfioctl.console.output import draw, emit_document, emit_file, say, width, write_whole
from vfioctl.containers.api import ContainersApi
from vfioctl.errors import HostError

app = group_app("kata")
OfNode = Annotated[Node, typer.Option(help="Kind of nodes in the CDI file; with cdev, companions are not attached.")]
OfClaim = Annotated[
    str | None,
    typer.Option(
        metavar="CLAIM",
        help="Only the devices of this claim; default: all devices on VFIO.",
        autocompletion=completion(suggest_claims),
    ),
]


class Mode(StrEnum):
    GUEST_KERNEL = "guest-kernel"
    VFIO = "vfio"


@app.group_with_examples("""
  vfioctl kata config --simulate hgx8""")
def kata() -> None:
    """Check and write the settings of Kata Containers for VFIO devices."""


@app.with_examples("""
  vfioctl kata config --simulate hgx8
  vfioctl kata config --mode vfio --output 50-vfioctl.toml --simulate hgx8""")
def config(
    ctx: typer.Context,
    *,
    claim: OfClaim = None,
    mode: Annotated[
        Mode, typer.Option(help="guest-kernel: the guest's driver uses the device; vfio: the container gets VFIO.")
    ] = Mode.GUEST_KERNEL,
    node: OfNode = Node.GROUP,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file instead of stdout.")] = None,
) -> None:
    """Write a drop-in for Kata's configuration.toml with the PCIe ports that devices need.

    Put it into the directory config.d beside configuration.toml. Each function of the guest needs a root port."""
    text = ContainersApi(opened(ctx)).kata.config(claim=claim, mode=mode.value, node=node)
    if output is None:
        emit_file(text)
        return
    write_whole(output, text.encode())
    say(f"vfioctl: {output} is written; vfioctl kata check reports what else Kata needs")


@app.with_examples("""
  vfioctl kata check --simulate hgx8 || true
  vfioctl kata check --simulate hgx8 --json || true""")
def check(
    ctx: typer.Context,
    *,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Kata's configuration.toml, if it is in another place."),
    ] = None,
    claim: OfClaim = None,
    node: OfNode = Node.GROUP,
    as_json: AsJson = False,
) -> None:
    """Check what a Kata guest needs to get devices, and give a remedy for each problem.

    Checks drivers and nodes, CDI names (one node for each device), the ports and the mode in Kata's configuration, the
    address space for BARs, and that device plugins use the CDI kind and names for their resources. Exits with 3 if
    there is a problem."""
    result = ContainersApi(opened(ctx)).kata.check(config_file, claim=claim, node=node)
    wrong = [check for check in result if check.ok is False]
    if as_json:
        emit_document({"ok": not wrong, "checks": result})
        if wrong:
            raise typer.Exit(HostError.exit_code)
        return
    from vfioctl.containers.render import findings_page

    draw(findings_page(result, width=width()))
    if wrong:
        many = "1 thing is" if len(wrong) == 1 else f"{len(wrong)} things are"
        raise HostError(f"{many} wrong", hint="a line that begins with -> says what to do")
