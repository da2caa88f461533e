"""`vfioctl share`: shares of GPUs among containers. May not add behaviour to the api."""

from typing import Annotated

import typer

from vfioctl.console.choice import on_this_host, opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, device_argument
from vfioctl.console.output import draw, emit_document
from vfioctl.inventory.api import suggest_devices
from vfioctl.sharing.api import SharingApi
from vfioctl.sharing.cli.allow import allow, allowed, disallow
from vfioctl.sharing.cli.serve import serve, thaw

app = group_app("share")
MODULES = {"extender": "vfioctl.sharing.cli.extender"}
"""The modules that add subcommands; only that of the one that is called is imported."""


@app.group_with_examples("""
  vfioctl claim create --owner pod/ml/train-0/main --cores 40 --gpu-memory 8GiB --simulate hgx8
  vfioctl share plan gpu0 --simulate hgx8
  vfioctl share allow /system.slice/lightdm.service --device gpu4 --simulate busy
  vfioctl share allowed --simulate busy""")
def share() -> None:
    """Share GPUs among containers, and show what enforces each share.

    claim create --cores and --gpu-memory make shares. What nothing enforces is named as such."""


@app.with_examples("""
  vfioctl share plan --simulate hgx8
  vfioctl share plan gpu0 --json --simulate hgx8""")
def plan(
    ctx: typer.Context,
    devices: Annotated[list[str] | None, device_argument(suggest_devices, meaning="Show only these GPUs.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what can enforce shares of each GPU, the strongest first, and what applies to each claim.

    Whatever is not enforced is named. mig and vgpu divide a GPU into parts of their own; mps, dmem, nvml and freezer
    keep clients within shares of cores and memory."""
    shown = SharingApi(opened(ctx)).plan(devices or ())
    if as_json:
        emit_document(shown)
        return
    from vfioctl.sharing.render.plan import share_page

    draw(share_page(shown, on_this_host))


app.with_examples("""
  vfioctl share allow /system.slice/nvidia-persistenced.service --device gpu0 --dry-run --simulate busy""")(allow)
app.with_examples("""
  vfioctl share disallow /system.slice/nvidia-persistenced.service --dry-run --simulate busy""")(disallow)
app.with_examples("""
  vfioctl share allowed --json --simulate busy""")(allowed)
app.with_examples("""
  vfioctl share serve --once --for 10s
  vfioctl share serve --once --json | jq -r '.usages[] | [.cgroup, .gpu, .gpu_seconds] | @tsv'
  vfioctl share serve --dry-run --config node.toml""")(serve)
app.with_examples("""
  vfioctl share thaw""")(thaw)
