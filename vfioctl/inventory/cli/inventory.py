"""`vfioctl inventory`: the host's GPUs, as a table, a tree or JSON."""

import sys
from typing import Annotated

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit, width
from vfioctl.errors import BadSpec

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl inventory --simulate hgx8
  vfioctl inventory --simulate workstation --tree
  vfioctl inventory --simulate mi300x --all --json""",
)
def inventory(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every PCI function, not only GPUs.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="As a tree: NUMA nodes, IOMMU groups, members.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the GPUs and what must travel with them.

    GPUs come with their companions (functions of the same card or of the same IOMMU group), by NUMA node and group,
    with the driver that has them and whether a guest could own them now. A wider terminal shows more columns.
    """
    if tree and as_json:
        raise BadSpec("--tree and --json exclude each other", hint="--json has the groups and NUMA nodes in it")
    host = chosen(ctx).open()
    found = host.inventory()
    tell_unfinished(host)
    if as_json:
        # whole lines for people; ten thousand functions in half the time and space for programs
        emit(found.document(everything=everything).model_dump_json(indent=2 if sys.stdout.isatty() else None))
        return
    from vfioctl.inventory.render.listing import inventory_table
    from vfioctl.inventory.render.tree import inventory_tree

    if tree:
        draw(inventory_tree(found, everything=everything))
    else:
        draw(inventory_table(found, width=width(), everything=everything))
