"""`vfioctl domain`. Its commands are in the other modules. May not add behaviour to the api."""

from vfioctl.console.lazy import group_app
from vfioctl.domain.cli import check

app = group_app("domain")


@app.callback(
    epilog="""[bold]Examples[/]
  echo '<domain/>' | vfioctl domain check - --simulate hgx8""",
)
def domain() -> None:
    """Build, check and provision libvirt domains with GPUs."""


check.add_to(app)
