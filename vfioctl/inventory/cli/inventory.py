"""`vfioctl inventory`: shows the host's GPUs as a table, a tree or JSON. May not add behaviour to the api."""

import sys
from typing import Annotated

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_json_text, width
from vfioctl.errors import BadSpec
from vfioctl.inventory.api import InventoryApi

app = typer.Typer(add_completion=False)


@app.command(
    cls=Command,
    epilog="""[bold]Examples[/]
  vfioctl inventory --simulate hgx8
  vfioctl inventory --simulate workstation --tree
  vfioctl inventory --simulate mi300x --all --json""",
)
def inventory(
    ctx: typer.Context,
    *,
    everything: Annotated[bool, typer.Option("--all", help="List every PCI function, not only GPUs.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Show a tree of NUMA nodes, IOMMU groups and members.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the GPUs and what must travel with them.

    Lists GPUs with their companions (functions of the same card or IOMMU group), by NUMA node and group, with their
    drivers and whether they are ready for a guest. A wider terminal shows more columns.
    """
    if tree and as_json:
        raise BadSpec("--tree and --json exclude each other", hint="--json has the groups and NUMA nodes in it")
    session = opened(ctx)
    found = InventoryApi(session).inventory()
    tell_unfinished(session)
    if as_json:
        # compact JSON with many functions: half the time and space
        emit_json_text(found.document(everything=everything).model_dump_json(indent=2 if sys.stdout.isatty() else None))
        return
    from vfioctl.inventory.render.listing import inventory_table
    from vfioctl.inventory.render.tree import inventory_tree

    if tree:
        draw(inventory_tree(found, everything=everything))
    else:
        draw(inventory_table(found, width=width(), everything=everything))
