"""`vfioctl domain`. Its commands are in the other modules. May not add behaviour to the api."""

from vfioctl.console.lazy import group_app

app = group_app("domain")
MODULES = {
    "apply": "vfioctl.domain.cli.run",
    "build": "vfioctl.domain.cli.build",
    "check": "vfioctl.domain.cli.check",
    "diff": "vfioctl.domain.cli.compare",
    "edit": "vfioctl.domain.cli.compare",
    "define": "vfioctl.domain.cli.define",
    "undefine": "vfioctl.domain.cli.define",
    "list": "vfioctl.domain.cli.define",
    "show": "vfioctl.domain.cli.define",
    "start": "vfioctl.domain.cli.run",
    "stop": "vfioctl.domain.cli.run",
    "verify": "vfioctl.domain.cli.compare",
}
"""The modules that add the subcommands; only that of the one that is called is imported."""


@app.callback(
    epilog="""[bold]Examples[/]
  vfioctl domain build ml1 --gpus 2 --cpus 16 --memory 64GiB --simulate hgx8
  vfioctl domain build ml1 --gpus 2 --explain --simulate hgx8
  vfioctl domain build ml1 --gpus 1 --simulate hgx8 | vfioctl domain check - --simulate hgx8""",
)
def domain() -> None:
    """Build, check and provision libvirt domains with GPUs."""
