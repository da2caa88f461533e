"""From an intent about vGPUs or VFs to a plan: looks at what the plan has to know, and lets `plan` decide.

Changes nothing. It looks at no more than the vGPUs and the functions that are named: a vGPU is made in less time than
it takes to read a whole host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from vfioctl.binding.model.circumstances import Circumstances
from vfioctl.core.change import Fact, Intent, Plan, Verb, VgpuRequest
from vfioctl.core.setting import VF_COUNTS
from vfioctl.core.snapshot import LedgerSnapshot
from vfioctl.errors import BadSpec, DeviceInUse, KernelRefused, UnknownDevice
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.values import PciAddress, Subject, Uuid
from vfioctl.inventory.probe.facts import read_facts
from vfioctl.inventory.probe.holders import perhaps_open, read_holders, read_mdev_holders
from vfioctl.inventory.probe.processes import Processes
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, Kernel
from vfioctl.vgpu.dialects.dialect import number_in, physical
from vfioctl.vgpu.dialects.mdev import INSTANCES
from vfioctl.vgpu.model.lookup import cards_called, with_owners
from vfioctl.vgpu.model.persistent import Kept, kept_file
from vfioctl.vgpu.model.vgpu import Made, Vgpus, VgpuState
from vfioctl.vgpu.plan.sriov import PhysicalFunction, plan_profile, plan_vfs
from vfioctl.vgpu.plan.vgpu import choose, plan_create, plan_remove
from vfioctl.vgpu.probe.definitions import read_definitions
from vfioctl.vgpu.probe.inventory import read_vgpus
from vfioctl.vgpu.probe.persistent import read_kept

CAPABILITIES = "/proc/driver/nvidia/capabilities"
Look = Callable[[], Inventory]
"""Reads the whole host: only VFs and what is bound to drivers need it."""


def read_persistent(kernel: Kernel, made: Mapping[str, Made]) -> tuple[dict[str, Intent], dict[str, str]]:
    """By file: the VFs and types that vfioctl keeps itself, then the definitions of mdevctl's kind that it wrote.

    And what is wrong with those of these files that are damaged.
    """
    kept, problems = read_kept(kernel)
    found = {kept_file(each.device, ""): _as_asked(each) for each in kept}
    definitions, damaged = read_definitions(kernel)
    ours = {name for name, each in made.items() if each.kept}
    for facts in definitions:
        if facts["uuid"] in ours and facts["start"] == "auto":
            # as it is: somebody may have changed it since with mdevctl
            found[facts["path"]] = Intent(
                verb=Verb.CREATE,
                devices=(),
                vgpu_request=VgpuRequest(
                    type=facts["type"],
                    parent=facts["parent"],
                    uuids=(Uuid(facts["uuid"]),),
                    parameters=tuple(facts["attributes"]),
                ),
            )
    problems += ((path, text) for path, text in damaged if path.rpartition("/")[2].lower() in ours)
    return found, dict(problems)


def _as_asked(kept: Kept) -> Intent:
    if kept.vfs is not None:
        return Intent(verb=Verb.SRIOV, devices=(kept.device,), vgpu_request=VgpuRequest(vfs=kept.vfs, persistent=True))
    return Intent(
        verb=Verb.CREATE,
        devices=(),
        vgpu_request=VgpuRequest(
            type=kept.name or kept.type,
            parent=kept.device,
            persistent=True,
            parameters=tuple(kept.parameters.items()),
        ),
    )


def is_there(found: Vgpus, intent: Intent) -> bool:
    """Whether the vGPU that is kept is there already."""
    wish = intent.vgpu_request
    if wish is None or intent.verb != Verb.CREATE:
        return False
    names = {str(uuid) for uuid in wish.uuids} or {wish.parent or ""}
    return any(
        vgpu.id in names and vgpu.state is VgpuState.LIVE and wish.type in (vgpu.type, vgpu.type_name)
        for vgpu in found.instances
    )


def refuse_other_vfs(plan: Plan) -> None:
    """VFs that are there are left as they are, also where what is kept says another number. Raises DeviceInUse."""
    for setting in plan.settings:
        if setting.kind in VF_COUNTS and setting.before not in ("0", setting.after):
            raise DeviceInUse(
                f"{setting.address} has {setting.before} VFs already, where {setting.after} are kept",
                hint=f"leave them, or have as many again: vfioctl sriov set {setting.address} {setting.after}",
            )


def read_concerned(kernel: Kernel, ledger: LedgerSnapshot, intent: Intent) -> Vgpus:
    """The vGPUs of the cards that an intent is about, of all where that does not show yet; and whose they are."""
    wedged = ledger.wedged()
    wish = intent.vgpu_request or VgpuRequest()
    named = [str(name) for name in (*wish.uuids, *wish.instances)]
    found = read_vgpus(kernel, _cards(kernel, intent), suspects=wedged, names=ledger.type_names(), defined=named)
    return with_owners(found, ledger.made(), wedged)


def _cards(kernel: Kernel, intent: Intent) -> set[str] | None:
    if intent.verb in (Verb.SRIOV, Verb.PROFILE):
        return {*intent.devices}
    if intent.verb != Verb.REMOVE or intent.vgpu_request is None:
        return None
    homes = {_home(kernel, name) for name in intent.vgpu_request.instances}
    return None if "" in homes else homes


def _home(kernel: Kernel, name: Subject) -> str:
    """The card of a VF, or of a mediated device that is there; empty for any other."""
    place = str(name)
    if isinstance(name, Uuid):
        try:
            place = kernel.link(f"{INSTANCES}/{name}").split("/")[-2]
        except KernelRefused:
            return ""
    return physical(kernel, place) if PCI_ADDRESS.fullmatch(place) else place


def planned(kernel: Kernel, intent: Intent, found: Vgpus, made: Mapping[str, Made], look: Look) -> Plan:
    """The plan for the intent: `found` says whose each vGPU is, `made` what the ledger says of them.

    Raises what the functions of `plan.vgpu` and `plan.sriov` raise.
    """
    if intent.verb == Verb.CREATE:
        return _create(kernel, intent, found)
    if intent.verb == Verb.PROFILE:
        (card,) = cards_called(found, intent.devices[0])
        return plan_profile(look(), card, intent)
    if intent.verb == Verb.REMOVE:
        return _remove(kernel, intent, found, made, look)
    processes = Processes(kernel)  # its children look while the inventory is read
    return _vfs(kernel, intent, found, made, look(), processes)


def _create(kernel: Kernel, intent: Intent, found: Vgpus) -> Plan:
    wish = intent.vgpu_request
    if wish is None:
        raise BadSpec("the plan does not say which vGPUs it is about")
    chosen, names = choose(found, intent)
    used = tuple(name for name in names if isinstance(name, Uuid))  # VFs have none
    intent = intent.model_copy(update={"vgpu_request": wish.model_copy(update={"uuids": used})})
    facts = _facts(kernel, (name for place in chosen.places for name in (place.card, place.parent)))
    files = [kept_file(name, place.parent) for place, name in zip(chosen.places, names, strict=True)]
    texts = {file: text_of(kernel, file) for file in files if wish.persistent}
    return plan_create(found, intent, chosen, names, facts, texts)


def _facts(kernel: Kernel, names: Iterable[str]) -> dict[PciAddress, Fact]:
    """Of those that are functions; a device of no bus has none."""
    addresses = [PciAddress(name) for name in dict.fromkeys(names) if PCI_ADDRESS.fullmatch(name)]
    return read_facts(kernel, addresses) if addresses else {}


def _remove(kernel: Kernel, intent: Intent, found: Vgpus, made: Mapping[str, Made], look: Look) -> Plan:
    wanted = intent.vgpu_request.instances if intent.vgpu_request else ()
    # what is wedged would not answer, and is refused anyway
    going = [v for v in found.instances if v.id in wanted and v.state not in (VgpuState.ZOMBIE, VgpuState.WEDGED)]
    facts = _facts(kernel, (name for vgpu in going for name in (vgpu.card, vgpu.parent)))
    files = [kept_file(each, vgpu.parent) for vgpu in going for each in wanted if each == vgpu.id]
    files += [vgpu.definition.path for vgpu in going if vgpu.definition]
    files += [kept_file(each, "") for each in wanted if isinstance(each, PciAddress)]
    texts = {file: text_of(kernel, file) for file in files}
    mdevs = [each for each in wanted if isinstance(each, Uuid)]
    functions = [each for each in wanted if isinstance(each, PciAddress) and any(v.id == each for v in going)]
    held = _holders(kernel, mdevs, functions, look)
    return plan_remove(found, intent, facts, texts, made, Circumstances(holders=held))


def _holders(kernel: Kernel, mdevs: Sequence[Uuid], functions: Sequence[PciAddress], look: Look) -> Holders:
    suspects = perhaps_open(kernel, mdevs)
    if not (suspects or functions):
        return Holders(devices=())
    processes = Processes(kernel)
    held = read_mdev_holders(kernel, suspects, processes)
    if not functions:
        return held
    inventory = look()
    of_vfs = read_holders(kernel, [inventory.by_address[a] for a in functions], inventory, processes)
    return of_vfs.model_copy(update={"holders": (*held.holders, *of_vfs.holders)})


def _has_gpu_instances(kernel: Kernel, function: Function) -> bool:
    """Whether MIG cuts some GPU here, where NVML does not tell of this one (nv-caps.c: gpu0/mig/gi1)."""
    if function.nvml and function.nvml.mig_mode is not None:
        return function.nvml.mig_mode
    homes = (f"{CAPABILITIES}/{gpu}/mig" for gpu in names_in(kernel, CAPABILITIES))
    return any(name.startswith("gi") for home in homes for name in names_in(kernel, home))


def _vfs(
    kernel: Kernel, intent: Intent, found: Vgpus, made: Mapping[str, Made], inventory: Inventory, processes: Processes
) -> Plan:
    if intent.devices[0] not in inventory.by_address:
        raise UnknownDevice(f"there is no device {intent.devices[0]} here", hint="vfioctl vgpu types lists cards")
    function = inventory.by_address[intent.devices[0]]
    home = f"{PCI_DEVICES}/{function.address}"
    known = PhysicalFunction(
        total=number_in(text_of(kernel, f"{home}/sriov_totalvfs")) or 0,
        autoprobe=text_of(kernel, f"{home}/sriov_drivers_autoprobe").strip(),
        kept=text_of(kernel, kept_file(function.address, "")),
        gpu_instances=_has_gpu_instances(kernel, function),
    )
    vfs = [inventory.by_address[vf] for vf in function.virtfns if vf in inventory.by_address]
    managed = [function] if function.driver == "nvidia" else []  # its tool takes the PF from its driver for a moment
    holders = read_holders(kernel, [*managed, *vfs], inventory, processes)
    return plan_vfs(inventory, found, intent, known, made, Circumstances(holders=holders))
