"""`vfioctl domain`. Its commands are in the other modules. May not add behaviour to the api."""

from vfioctl.console.lazy import group_app
from vfioctl.domain.cli import apply, build, check, compare, define, listing, run, verify

app = group_app("domain")


@app.callback(
    epilog="""[bold]Examples[/]
  vfioctl domain build ml1 --gpus 2 --cpus 16 --memory 64GiB --simulate hgx8
  vfioctl domain build ml1 --gpus 2 --explain --simulate hgx8
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain check - --simulate hgx8""",
)
def domain() -> None:
    """Build, check and provision libvirt domains with GPUs."""


apply.add_to(app)
build.add_to(app)
check.add_to(app)
compare.add_to(app)
define.add_to(app)
listing.add_to(app)
run.add_to(app)
verify.add_to(app)
