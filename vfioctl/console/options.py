"""Options and arguments that several commands share, so that they are spelt and explained alike everywhere."""

from typing import Annotated

import typer

from vfioctl.inventory.completion import complete_device

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. (Only a terminal is asked anyway.)")]
Devices = Annotated[
    list[str],
    typer.Argument(
        metavar="DEVICE",
        help="0000:41:00.0, 41:00.0, gpu0 (as listed by inventory) or vendor:device as in 10de:2330.",
        autocompletion=complete_device,
    ),
]
Device = Annotated[
    str,
    typer.Argument(
        metavar="DEVICE",
        help="0000:41:00.0, 41:00.0, gpu0 (as listed by inventory) or vendor:device as in 10de:2330.",
        autocompletion=complete_device,
    ),
]
WithGroup = Annotated[
    bool, typer.Option("--with-group", help="Take along devices of other cards that share the IOMMU group.")
]
Every = Annotated[bool, typer.Option("--every", help="Where a DEVICE means several, take all of them.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and change nothing; with --json, in the form apply takes.")
]
Foreign = Annotated[bool, typer.Option("--foreign", help="Also what vfioctl did not make.")]
Persistent = Annotated[
    bool, typer.Option("--persistent", help="Have it made again at boot, by mdevctl's definition or a file of our own.")
]
Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="DURATION", help="Wait so long, as 60s or 5m, for those who hold a device."),
]
StopServices = Annotated[
    bool,
    typer.Option(
        "--stop-services",
        help="Stop the services that only look after GPUs (nvidia-persistenced, nvidia-powerd, dcgm) where they hold "
        "one; unbind starts them again.",
    ),
]
StopService = Annotated[
    list[str] | None,
    typer.Option("--stop-service", metavar="UNIT", help="Stop this one too where it holds a device, as gdm.service."),
]
ForceHolders = Annotated[
    bool,
    typer.Option(
        "--force-holders",
        help="Go on although somebody has the device open: the kernel may then wait for them for ever. Never takes a "
        "disk or a network interface in use.",
    ),
]
