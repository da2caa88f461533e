"""`vfioctl domain build`. May not add behaviour to the api."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_document, emit_file, refuse_to_replace, say, write_whole
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.domain import Connect
from vfioctl.domain.cli.spec_options import spec_options
from vfioctl.errors import BadSpec, some_of

if TYPE_CHECKING:
    from vfioctl.domain.build.build import Built

_EXAMPLES = """
  vfioctl domain build ml1 --gpus 2 --cpus 16 --memory 64GiB --simulate hgx8
  vfioctl domain build ml1 --gpus 2 --cpus 16 --memory 64GiB --explain --simulate hgx8
  vfioctl domain build game --device gpu1 --cpus 8 --template windows-desktop --simulate workstation
  vfioctl domain build ml1 --gpus 8 --cpus 128 --memory 512GiB --json --simulate hgx8"""


def add_to(app: App) -> None:
    """Add the command to `vfioctl domain`."""
    app.with_examples(_EXAMPLES)(build)


@spec_options()
def build(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the domain.")] = None,
    *,
    requested: dict[str, Any],
    spec: Annotated[
        Path | None,
        typer.Option("--spec", metavar="FILE", help="TOML or YAML file with these settings; options override it."),
    ] = None,
    connect: Connect = "",
    nccl_topo: Annotated[
        Path | None,
        typer.Option(
            "--nccl-topo",
            metavar="FILE",
            help="Also write the topology that NCCL reads in the guest (NCCL_TOPO_FILE) to this file.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --nccl-topo.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the choices and their reasons instead of the XML. --json has both.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the XML of a domain with GPUs, with its CPUs, memory and devices on the right NUMA nodes.

    The devices are selected as for a claim, or are those of a claim. The domain gets whole cores near them
    that no claim, no other guest and no other domain has, memory of the same NUMA nodes, and PCI buses that show the
    guest where its devices are. Everything else comes from the template. Nothing is reserved or changed."""
    if nccl_topo == Path("-"):
        raise BadSpec("--nccl-topo cannot write to stdout, where the domain goes", hint="name a file")
    api = DomainApi(opened(ctx))
    asked = api.spec(requested if name is None else {**requested, "name": name}, spec)
    built = api.build(asked, connect=connect, nccl=bool(nccl_topo))
    if nccl_topo:
        _write_topology(built, nccl_topo, force=force)
    _show(built, explain=explain, as_json=as_json)


def _write_topology(built: "Built", file: Path, *, force: bool) -> None:
    refuse_to_replace(file, force=force, otherwise="name a file")
    write_whole(file, built.nccl_topology.encode())
    if missing := built.not_in_nccl_topology:
        say(f"--nccl-topo: {some_of(missing)}: not in the file, because the NUMA node is not known")


def _show(built: "Built", *, explain: bool, as_json: bool) -> None:
    if as_json:
        emit_document(built.summary())
        return
    if explain:
        from vfioctl.domain.render.domains import choices_page

        draw(choices_page(built.layout.choices))
        return
    emit_file(built.xml)
    for choice in built.weaker:
        say(f"{choice.what}: {choice.weaker}")
