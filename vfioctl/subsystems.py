"""The table of subsystems: the location of each one's api, commands, registered parts and ledger migrations.

May not import any of them, so that --help stays fast. To add a subsystem, add a folder and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LOOK, CHANGE = "Look", "Change"


class Command(NamedTuple):
    """A command that is imported on first use."""

    panel: str
    summary: str
    """The first line of the command's own help; a test compares them."""


class Subsystem(NamedTuple):
    """One subsystem: a folder of vfioctl. Locations are `module:name`, imported on first use."""

    name: str
    cli: str = ""
    """The package with one module per command, named like the command; the module's `app` is a typer application."""
    commands: Mapping[str, Command] = {}
    api: str = ""
    """The api class, available as `host.NAME`."""
    parts: str = ""
    """Location of a `vfioctl.core.registry.Parts`."""
    migrations: str = ""
    """Location of a tuple of `vfioctl.core.store.Migration`."""
    settings: str = ""
    """Location of the pydantic model of its table in config.toml, which has the subsystem's name."""
    missing: str = ""
    """Location of a function (session, settings) that yields what the host does not have of its settings: the keys in
    its table, and the words."""
    reservations: str = ""
    """Location of a function (session) that returns what is reserved, `vfioctl.core.reservations.Reservation`s."""
    unfit: str = ""
    """Location of a function (session, request, inventory) that returns, by address, why GPUs cannot serve a claim of
    GPUs with their host driver."""
    occupied: str = ""
    """Location of a function (session, request) that returns the same for each claim. Each imports the module."""
    client_edits: str = ""
    """Location of a function (session, claim) that returns what a container with the claim's share of a GPU needs
    besides the GPU: its environment, and directories of the host that it gets under the same paths."""
    follower: str = ""
    """Location of a class that keeps files in step with claims: a `vfioctl.claims.lifecycle.lifecycle.Follower`."""
    published: str = ""
    """Location of a `vfioctl.core.snapshot.Record`: what ordinary users may know of the records in the ledger."""
    published_to_group: str = ""
    """The same for members of the group vfioctl, if they may know more."""


SUBSYSTEMS: tuple[Subsystem, ...] = (
    Subsystem(
        name="inventory",
        cli="vfioctl.inventory.cli",
        commands={
            "inventory": Command(LOOK, "List GPUs, and the functions that must be bound together with them."),
            "show": Command(LOOK, "Show everything about one device."),
        },
        api="vfioctl.inventory.api:InventoryApi",
        parts="vfioctl.inventory.parts:PARTS",
    ),
    Subsystem(
        name="binding",
        cli="vfioctl.binding.cli",
        commands={
            "rom": Command(LOOK, "Save a device's expansion ROM and check it."),
            "bind": Command(CHANGE, "Bind devices to vfio-pci, ready for a guest."),
            "unbind": Command(CHANGE, "Bind devices to their previous drivers again."),
            "reset": Command(CHANGE, "Reset a device that is not in use."),
        },
        api="vfioctl.binding.api:BindingApi",
        parts="vfioctl.binding.parts:PARTS",
        migrations="vfioctl.binding.migrations:MIGRATIONS",
    ),
    Subsystem(
        name="vgpu",
        cli="vfioctl.vgpu.cli",
        commands={
            "vgpu": Command(CHANGE, "List, create and remove vGPUs."),
            "sriov": Command(CHANGE, "Set the number of VFs of a PF, and profiles of xe cards."),
        },
        api="vfioctl.vgpu.api:VgpuApi",
        parts="vfioctl.vgpu.parts:PARTS",
        migrations="vfioctl.vgpu.ledger.migrations:MIGRATIONS",
        published="vfioctl.vgpu.ledger.reading:published",
    ),
    Subsystem(name="placement", api="vfioctl.placement.api:PlacementApi"),
    Subsystem(
        name="claims",
        cli="vfioctl.claims.cli",
        commands={
            "reconcile": Command(LOOK, "Compare the claims with the machine, and name a remedy for each difference."),
            "place": Command(LOOK, "Show which GPUs, vGPUs, CPUs and hugepages a claim would get, and why."),
            "claim": Command(CHANGE, "Claim GPUs for a VM, a container or a user, and release them."),
        },
        api="vfioctl.claims.api:ClaimsApi",
        parts="vfioctl.claims.parts:PARTS",
        migrations="vfioctl.claims.ledger.migrations:MIGRATIONS",
        settings="vfioctl.placement.model.settings:ClaimSettings",
        missing="vfioctl.placement.api:missing",
        reservations="vfioctl.claims.ledger.ledger:reservations",
        published="vfioctl.claims.ledger.publishing:published",
        published_to_group="vfioctl.claims.ledger.publishing:published_to_group",
    ),
    Subsystem(
        name="access",
        api="vfioctl.access.api:AccessApi",
        parts="vfioctl.access.parts:PARTS",
        follower="vfioctl.access.api:AccessApi",
    ),
    Subsystem(
        name="containers",
        cli="vfioctl.containers.cli",
        commands={
            "cdi": Command(CHANGE, "Write, list and check CDI files, which name devices for container runtimes."),
            "oci": Command(CHANGE, "Add the devices of a claim to containers of runc, crun and Kata."),
            "kata": Command(CHANGE, "Check and write the settings of Kata Containers for VFIO devices."),
        },
        api="vfioctl.containers.api:ContainersApi",
        parts="vfioctl.containers.parts:PARTS",
        follower="vfioctl.containers.cdi.api:CdiApi",
    ),
    Subsystem(
        name="domain",
        cli="vfioctl.domain.cli",
        commands={
            "domain": Command(CHANGE, "Build, check and provision libvirt domains with GPUs."),
            "hook": Command(CHANGE, "Prepare devices whenever libvirt starts a domain."),
        },
        api="vfioctl.domain.api:DomainApi",
        parts="vfioctl.domain.parts:PARTS",
        settings="vfioctl.domain.model.libvirt:DomainSettings",
    ),
    Subsystem(
        name="persist",
        cli="vfioctl.persist.cli",
        commands={
            "persist": Command(CHANGE, "List, restore and remove what each boot restores."),
            "install": Command(CHANGE, "Install what restores devices at boot, completions and manual pages."),
            "uninstall": Command(CHANGE, "Remove what install has put in place."),
        },
        api="vfioctl.persist.api:PersistApi",
        parts="vfioctl.persist.parts:PARTS",
    ),
    Subsystem(
        name="state",
        cli="vfioctl.state.cli",
        commands={
            "state": Command(
                CHANGE, "Show, compare and set drivers, VFs, vGPUs and what each boot restores, as one document."
            )
        },
        api="vfioctl.state.api:StateApi",
    ),
    Subsystem(
        name="doctor",
        cli="vfioctl.doctor.cli",
        commands={
            "doctor": Command(
                LOOK, "Check what stops or harms passthrough on this host, and name a remedy for each problem."
            ),
            "report": Command(
                LOOK, "Write what a bug report needs to a file, without what names a person or a machine."
            ),
        },
        api="vfioctl.doctor.api:DoctorApi",
    ),
    Subsystem(
        name="kubelet",
        cli="vfioctl.kubelet.cli",
        commands={
            "kubelet": Command(CHANGE, "Give devices to pods of Kubernetes, as a device plugin of the kubelet."),
        },
        api="vfioctl.kubelet.api:KubeletApi",
        migrations="vfioctl.kubelet.ledger.migrations:MIGRATIONS",
        settings="vfioctl.kubelet.model.settings:KubeletSettings",
        follower="vfioctl.kubelet.serving.differences:KubeletFollower",
        published="vfioctl.kubelet.ledger.cordons:published",
    ),
    Subsystem(
        name="sharing",
        cli="vfioctl.sharing.cli",
        commands={
            "share": Command(CHANGE, "Share GPUs among containers, and show what enforces each share."),
            "mps": Command(CHANGE, "Share a GPU between processes by NVIDIA's MPS, with limits for each."),
        },
        api="vfioctl.sharing.api:SharingApi",
        parts="vfioctl.sharing.parts:PARTS",
        settings="vfioctl.sharing.model.settings:SharingSettings",
        unfit="vfioctl.sharing.api:unfit",
        occupied="vfioctl.sharing.mps.occupied:occupied",
        client_edits="vfioctl.sharing.api:client_edits",
    ),
    Subsystem(
        name="overview",
        cli="vfioctl.overview.cli",
        commands={"watch": Command(LOOK, "Show the host's devices, and what happens to them, until interrupted.")},
        api="vfioctl.overview.api:OverviewApi",
    ),
    Subsystem(
        name="host",
        cli="vfioctl.commands",
        commands={
            "holders": Command(LOOK, "List who uses a device."),
            "history": Command(LOOK, "List the changes made to this host."),
            "snapshot": Command(LOOK, "Record this host in a text file."),
            "config": Command(LOOK, "Check and show the configuration."),
            "hosts": Command(LOOK, "List the bundled hosts for --simulate and --host."),
            "man": Command(LOOK, "Show the manual page of vfioctl, or of one of its commands."),
            "apply": Command(CHANGE, "Run a plan that was saved with --dry-run --json."),
            "recover": Command(CHANGE, "Recover interrupted changes."),
        },
    ),
    Subsystem(
        name="tui",
        cli="vfioctl.tui.cli",
        commands={
            "tui": Command(LOOK, "Show devices, claims, vGPUs, domains and changes on live screens."),
        },
    ),
)
