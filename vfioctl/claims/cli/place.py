"""`vfioctl place`: shows what a claim would get. May not change anything."""

from typing import Annotated

import typer

from vfioctl.claims.api import ClaimsApi, suggest_owners
from vfioctl.claims.cli.options import Wish, default_owner, wish_options
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, completion
from vfioctl.console.output import draw, emit_document, width

app = App(add_completion=False)


@app.with_examples("""
  vfioctl place --gpus 2 --cpus 16 --simulate hgx8
  vfioctl place --gpus 4 --numa same --memory-min 80GB --simulate hgx8 --json
  vfioctl place --device gpu1 --cpus 4 --simulate workstation
  vfioctl place --vgpu A2-4C=2 --simulate a2""")
@wish_options("ttl")
def place(
    ctx: typer.Context,
    *,
    wish: Wish,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            metavar="OWNER",
            help="Apply this owner's quota; user/YOU, if not given.",
            autocompletion=completion(suggest_owners),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which GPUs, vGPUs, CPUs and hugepages a claim would get, and why.

    Selects as claim create does, but reserves nothing; claim create --dry-run also shows the plan. GPUs are chosen
    on as few NUMA nodes as possible, close together by PCIe, and so that large groups of free GPUs stay whole. vGPUs
    are packed on as few cards as possible. CPUs are whole cores of the same node that no other claim and no pinned
    guest has; the first core of each node stays with the host. The reason why each other GPU was not chosen is shown.
    If something is not available, nothing is chosen (exit code 4), and the reasons are shown."""
    wish.refuse_unclear()
    api = ClaimsApi(opened(ctx))
    placement, capacity = api.place(wish.asked(api, owner or default_owner()))
    if as_json:
        emit_document(placement.document())
        return
    from vfioctl.placement.render import placement_page

    draw(placement_page(placement, capacity.inventory, width=width()))
