"""The table of commands, and the group that imports one only when it is called.

May not import a command's module, rich or the models: --version and --help pay for this table alone.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import OptionInfo

from vfioctl.console.choice import OPTIONS

_LOOK, _CHANGE = "Look", "Change"


try:
    from typer._coercion import PassThroughRuntimeParam

    _KINDS: dict[Any, type] = {str: str, bool: bool, list[str]: Sequence}
    _AS_TYPED = {
        kind: PassThroughRuntimeParam(annotation=form, parameter_info=OptionInfo()) for kind, form in _KINDS.items()
    }
except ImportError:  # another typer: it checks text and flags in its own way, only slower
    _AS_TYPED = {}


class Entry(NamedTuple):
    """A command before it is imported."""

    module: str
    panel: str
    summary: str
    """The first line of the command's own help; a test compares them."""


COMMANDS = {
    "inventory": Entry("vfioctl.inventory.cli.inventory", _LOOK, "List the GPUs and what must travel with them."),
    "show": Entry("vfioctl.inventory.cli.show", _LOOK, "Show everything about one device."),
    "holders": Entry("vfioctl.inventory.cli.holders", _LOOK, "List who uses a device."),
    "history": Entry("vfioctl.commands.history", _LOOK, "List the changes that were made here."),
    "snapshot": Entry("vfioctl.commands.snapshot", _LOOK, "Write this host down as one text file."),
    "rom": Entry("vfioctl.binding.cli.rom", _LOOK, "Save a device's expansion ROM and check it."),
    "hosts": Entry("vfioctl.commands.hosts", _LOOK, "List the bundled hosts that --simulate and --host know by name."),
    "bind": Entry("vfioctl.binding.cli.bind", _CHANGE, "Hand devices to vfio-pci, ready for a guest."),
    "unbind": Entry("vfioctl.binding.cli.unbind", _CHANGE, "Give devices back to the drivers they had."),
    "vgpu": Entry("vfioctl.vgpu.cli.vgpu", _CHANGE, "List, make and remove vGPUs of GPUs."),
    "sriov": Entry("vfioctl.vgpu.cli.sriov", _CHANGE, "Turn the VFs of a PF on and off, and set what each may take."),
    "reset": Entry("vfioctl.binding.cli.reset", _CHANGE, "Reset a device that nobody uses."),
    "apply": Entry("vfioctl.commands.apply", _CHANGE, "Run a plan that was saved with --dry-run --json."),
    "recover": Entry("vfioctl.commands.recover", _CHANGE, "Finish what a crash or a power cut left half done."),
}


class LazyGroup(TyperGroup):
    """Knows its commands by name and summary until one is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel))

    def get_params(self, ctx: Any) -> list[Any]:
        return _suited(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and self.load(str(command.name)), rest

    def load(self, name: str) -> TyperCommand:
        """The command itself, and those of a group: they also understand the host options of this group."""
        command = cast("TyperCommand", get_command(importlib.import_module(COMMANDS[name].module).app))
        for each in (command, *getattr(command, "commands", {}).values()):
            each.params += [parameter for parameter in self.params if parameter.name in OPTIONS]
            each.help = _flowing(each.help or "")
        return command


class HelpfulGroup(TyperGroup):
    """A command of several verbs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _suited(super().get_params(ctx))


class HelpfulCommand(TyperCommand):
    """A command whose flags do not call themselves `<bool>` in its help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _suited(super().get_params(ctx))


def _suited(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if (kind := parameter.type_descriptor.annotation) in _AS_TYPED:
            # For text and flags too, typer would build pydantic adapters: no child could read while that is imported.
            parameter._runtime_param = _AS_TYPED[kind]  # noqa: SLF001 - no public way; without it all is well, but slower
    return parameters


def _flowing(text: str) -> str:
    """Paragraphs without the line breaks of the source, for the terminal to break anew."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
