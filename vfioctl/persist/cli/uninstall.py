"""`vfioctl uninstall`: removes what install put in place. May not add behaviour to the api."""

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.persist.api import PersistApi

app = App(add_completion=False)


@app.with_examples("""
  vfioctl install --yes --simulate hgx8
  vfioctl uninstall --dry-run --simulate hgx8""")
def uninstall(ctx: typer.Context, *, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove what install has put in place.

    What is persistent stays in /etc/vfioctl and /etc/udev: vfioctl persist remove removes it."""
    session = opened(ctx)
    carry_out(session, PersistApi(session).plan_uninstall(), dry_run=dry_run, yes=yes, as_json=as_json)
