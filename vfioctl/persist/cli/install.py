"""`vfioctl install`: puts in place what restores devices at boot. May not add behaviour to the api."""

import typer

from vfioctl.console.changes import carry_out
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.persist.api import PersistApi

app = App(add_completion=False)


@app.with_examples("""
  vfioctl install --dry-run --simulate hgx8
  vfioctl install --yes --simulate hgx8""")
def install(ctx: typer.Context, *, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Install what restores devices at boot, completions and manual pages.

    For the boot this is a udev rule, two systemd units, and a script that runs before any driver is loaded: files below
    /etc/udev, /etc/systemd and /usr/lib/vfioctl. It enables the units as systemctl enable does. Where initramfs-tools
    or dracut is installed, a hook copies the rule and the script into the initramfs when that is made again, which
    vfioctl leaves to you. Completions for bash, zsh and fish, and the manual pages, go to /usr/local/share. Run it
    again after an upgrade: it renews what differs.

    The Debian package has all of this. On a host with it, install removes older copies, which would take precedence."""
    session = opened(ctx)
    carry_out(session, PersistApi(session).plan_install(), dry_run=dry_run, yes=yes, as_json=as_json)
