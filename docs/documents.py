"""What each command prints with --json: the documents that are no class of vfioctl, and which command prints which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from vfioctl.binding.model.rom import Rom
from vfioctl.claims.model.difference import Difference
from vfioctl.containers.kata.check import Finding
from vfioctl.core.change import JournalEntry, Outcome, Plan, Repair
from vfioctl.kubelet.model.settings import Consumer, DeviceKind, KubeletSettings
from vfioctl.persist.model.persistent import Persistent
from vfioctl.placement.model.placement import PlacementDocument
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.sharing.model.gpu_time import Source
from vfioctl.sharing.model.settings import SharingSettings
from vfioctl.state.model.difference import Later


class Failure(TypedDict):
    """What failed, and what to do."""

    kind: str
    exit_code: int
    message: str
    kernel_said: str
    restored: str
    """What became of the change: what was restored."""
    hint: str
    next_command: str
    facts: dict[str, object]


class Error(TypedDict):
    """What every command prints if it fails; see the table of exit codes."""

    error: Failure


# -- claims ------------------------------------------------------------------------------------------


class ClaimedDevice(TypedDict):
    address: str
    """The function; of a mediated device its parent."""
    mdev: str | None
    """The UUID of a mediated device."""
    identity: str
    """The ids and the class of the function; empty for a mediated device."""
    asked: bool
    """False for a companion, which only travels with a device that was asked for."""
    undo: str
    """What a release does with it; empty: it stays as it is."""
    cdi: str | None
    """The device's name for container runtimes."""
    group: NotRequired[str | None]
    """/dev/vfio/N, if it exists; where a single claim is shown"""
    cdev: NotRequired[str | None]
    """/dev/vfio/devices/vfioN, if it exists; where a single claim is shown"""


class Pages(TypedDict):
    node: int
    size: int
    """Of one page, in bytes."""
    pages: int


class Share(TypedDict):
    """What a claim has of a GPU that stays with its host driver."""

    address: str
    """The GPU's PCI address."""
    cores: int
    """Hundredths of the GPU; 100 is the whole GPU."""
    memory: int
    """Bytes; 0: none is reserved, or all of a whole GPU."""
    total: int
    """Bytes of memory that the GPU has, in whole units of 256 MiB; 0 if not known."""
    identity: str
    """The ids and the class of the GPU."""
    uuid: str
    """NVIDIA's UUID of the GPU; empty for others."""
    enforce: str
    """The enforcement that was asked for; empty for the strongest that the host has."""
    cdi: str | None
    """The name that NVIDIA's container toolkit gives to the GPU."""


class Claim(TypedDict):
    """A claim. Times are ISO 8601 in UTC."""

    id: str
    owner: str
    state: str
    """reserved, held, releasing, wedged, released or failed"""
    stale: str
    """Why nobody needs it any more, or why it is not usable in this boot; empty otherwise."""
    key: str
    """The caller's name for the request; empty for none."""
    devices: list[ClaimedDevice]
    shares: list[Share]
    cpus: str
    """A list such as 1-2,97-98."""
    hugepages: list[Pages]
    labels: dict[str, str]
    since: str
    expires: str | None
    ended: str | None
    boot_id: str
    """The boot in which it was made or verified last."""
    user: str
    sudo_user: str
    pid: int | None
    command: str
    plans: list[str]
    """The ids of the plans that changed its devices."""
    why: str
    """What went wrong, for a claim that failed or is wedged."""
    placement: NotRequired[PlacementDocument]
    """Why these devices were chosen: with --explain."""


class Claims(TypedDict):
    claims: list[Claim]


class ClaimEvent(TypedDict):
    """A change of a claim."""

    number: int
    claim: str
    state: str
    owner: str
    at: str
    boot_id: str
    user: str
    sudo_user: str
    pid: int | None
    command: str
    plan: str
    """The id of the plan that changed the devices; empty if none did."""
    why: str


class WatchedEvent(ClaimEvent):
    """One line of `claim watch`."""

    devices: list[str]


class ShownClaim(Claim):
    """A claim with its history."""

    request: dict[str, object]
    """What it was made for, by option."""
    events: list[ClaimEvent]


class FailedRepair(TypedDict):
    kind: str
    words: str
    remedy: str
    claim: str
    owner: str
    device: str
    fix: str
    error: str
    hint: str


class Reconciliation(TypedDict):
    """How claims and machine differ."""

    differences: list[Difference]
    """Those that remain; the exit code is 4 if there are some."""
    fixed: list[Difference]
    failed: list[FailedRepair]
    unknown: list[str]
    """What could not be looked at, and why."""


# -- containers --------------------------------------------------------------------------------------


class CdiDevice(TypedDict):
    name: str
    nodes: list[str]
    claim: str | None


class CdiFile(TypedDict):
    path: str
    kind: str
    version: str
    devices: list[CdiDevice]
    ours: bool
    """Whether its text is one that vfioctl writes."""
    problems: list[str]


class CdiFiles(TypedDict):
    files: list[CdiFile]
    warnings: list[str]


class CheckedCdiFile(TypedDict):
    path: str
    version: str
    devices: int
    """Their number."""
    problems: list[str]


class CheckedCdiFiles(TypedDict):
    """The exit code is 2 if a file has problems."""

    files: list[CheckedCdiFile]


class CdiExport(TypedDict):
    """What `cdi generate --output FILE` has written."""

    path: str
    written: bool
    document: dict[str, object] | None
    """The CDI file, as its specification has it; null if it has no device."""


class OciInjection(TypedDict):
    bundle: str
    claim: str
    nodes: list[str]
    changes: list[str]
    """Empty if config.json has the devices already."""
    written: bool


class KataCheck(TypedDict):
    """The exit code is 3 unless it is ok."""

    ok: bool
    checks: list[Finding]
    """`ok` is null for what could not be checked."""


# -- what cgroups may open ----------------------------------------------------------------------------------


class CgroupHolder(TypedDict):
    """A process that has a node open which it may not open any more: that is not revoked."""

    pid: int
    name: str
    cgroup: str
    path: str
    number: str


class AllowedCgroup(TypedDict):
    """What a cgroup may open of the host's GPUs. Numbers are those of character devices, such as c 195:0."""

    cgroup: str
    mechanisms: list[str]
    """bpf, systemd: what restricts this cgroup itself."""
    gpus: list[str]
    """GPUs of which no node is refused."""
    refused: list[str]
    """Numbers of the GPU nodes that are refused."""
    above: dict[str, list[str]]
    """Numbers that cgroups above refuse, by their path."""
    others: list[str]
    """Names of programs of other owners, which may refuse more."""
    holders: list[CgroupHolder]
    unread: int
    """Processes of the host whose open files could not all be read."""
    unknown: str
    """Why nothing is known about processes; empty if they can be read."""


class AllowedCgroups(TypedDict):
    """What cgroups may open."""

    cgroups: list[AllowedCgroup]


# -- the device plugin of the kubelet ------------------------------------------------------------------


class KubeletRegistration(TypedDict):
    """Whether the kubelet knows a resource. Times are ISO 8601 in UTC."""

    resource: str
    registered: bool
    since: str
    """Empty if it was never tried."""
    problem: str
    """Why the kubelet does not know it, or does not count its devices; empty otherwise."""


class KubeletFailure(TypedDict):
    at: str
    resource: str
    """Empty for what concerns no single resource."""
    what: str
    """The call of the kubelet, or the work of the service."""
    text: str


class KubeletService(TypedDict):
    """What the running service tells of itself."""

    pid: int
    since: str
    ledger: str
    """The ledger that it uses."""
    registrations: list[KubeletRegistration]
    failures: list[KubeletFailure]
    """The last ones, the newest first."""
    pods_problem: str
    """Why the kubelet did not tell which pod has which device; empty if it did."""


class KubeletDevice(TypedDict):
    id: str
    """The kubelet's name for it."""
    device: str
    """The function, or the UUID of the mediated device."""
    label: str
    """Its name as a DNS label."""
    healthy: bool
    reason: str
    """Why no pod gets it; empty if it is healthy."""
    numa_node: int | None
    claim: str | None
    """The claim by which a pod has it."""
    owner: str | None
    """The owner of that claim: pod/_/_/_ while its pod is not known yet."""


class KubeletResource(TypedDict):
    name: str
    devices_are: DeviceKind
    consumer: Consumer
    registered: bool
    problem: str
    """Why the kubelet does not know it, or why it has no devices; empty otherwise."""
    devices: list[KubeletDevice]


class KubeletStatus(TypedDict):
    """The device plugin of a host."""

    service: KubeletService | None
    """null if the service does not run."""
    resources: list[KubeletResource]
    problems: list[str]
    """What could not be looked at, and why."""


class Cordoned(TypedDict):
    cordoned: list[str]
    """Addresses, and UUIDs of mediated devices."""


class Uncordoned(TypedDict):
    uncordoned: list[str]
    """Those that were cordoned."""


# -- shares of GPUs ------------------------------------------------------------------------------------


class GpuTimeUsage(TypedDict):
    cgroup: str
    """Its path below the root of the hierarchy; (other) for all that are not listed; with lease, the claim's owner."""
    gpu: str
    source: Source
    gpu_seconds: float
    error_seconds: float
    """Seconds by which it may be more or less."""
    share: float | None
    """Its part of the GPU time that was measured on this GPU; null for a lease, and without any."""
    quota: float | None
    """The part that the weights give it; null without a weight."""


class GpuMemory(TypedDict):
    cgroup: str
    gpu: str
    bytes: int


class GpuTime(TypedDict):
    """GPU time by control group, in seconds of the GPU's busiest engine."""

    seconds: float
    """How long was measured."""
    usages: list[GpuTimeUsage]
    memory: list[GpuMemory]
    """What control groups have of the memory of GPUs at the end."""
    would_freeze: list[str]
    never_frozen: dict[str, str]
    """Why, by control group."""
    problems: dict[str, str]
    """Why something could not be measured, by GPU or control group."""


class ShareThaw(TypedDict):
    thawed: list[str]
    """Control groups."""


class MpsLimits(TypedDict):
    """What clients may use at most; null: no limit is set, or none is reported."""

    threads: int | None
    """Percent of the GPU's multiprocessors."""
    memory: int | None
    """Bytes of the GPU's memory."""


class MpsClient(TypedDict):
    pid: int
    claim: str
    """By its own environment, if that claim has a share of the GPU; empty otherwise."""
    limits: MpsLimits
    """Those of its environment; the server's count as well."""


class MpsServer(TypedDict):
    pid: int
    status: str
    """As the daemon has it, such as ACTIVE or FAULT; unknown for no sensible answer."""
    limits: MpsLimits
    clients: list[MpsClient] | None
    """null if the daemon does not list them."""


class MpsMount(TypedDict):
    path: str
    """On the host and in the container."""
    options: list[str]


class MpsShareOfClaim(TypedDict):
    claim: str
    owner: str
    gpu: str
    cores: int
    """Hundredths of the GPU."""
    memory: int
    """Bytes; 0 for no limit."""
    environment: dict[str, str]
    """What a client of the claim is started with."""
    mounts: list[MpsMount]


class MpsDaemon(TypedDict):
    name: str
    gpu: str
    uuid: str
    """NVML's."""
    claim: str | None
    """The claim whose daemon it is; null if it is for all of the GPU's."""
    state: str
    """active; inactive: it died; silent: its unit is active, and it does not answer; unknown: systemd does not
    answer."""
    problem: str
    """Why something of it is unknown; empty if nothing is."""
    compute_mode: str | None
    compute_mode_before: str
    """What `mps stop` sets again."""
    pipes: str
    """CUDA_MPS_PIPE_DIRECTORY of its clients."""
    unit: str
    told: MpsLimits
    limits: MpsLimits
    """The defaults, as it reports them."""
    servers: list[MpsServer]
    shares: list[MpsShareOfClaim]


class MpsDifferenceFound(TypedDict):
    daemon: str
    words: str
    remedy: str
    """A command that removes the difference, or shows more."""


class MpsStatusFound(TypedDict):
    """The MPS daemons of a host."""

    protocol: int | None
    """The newest that the control program knows, 2 or 3; null if there is no program."""
    daemons: list[MpsDaemon]
    differences: list[MpsDifferenceFound]
    unknown: list[str]
    """What could not be read, and why."""


class CdiMount(TypedDict):
    hostPath: str
    containerPath: str
    options: list[str]


class CdiContainerEdits(TypedDict):
    env: list[str]
    mounts: list[CdiMount]


class MpsEnv(MpsShareOfClaim):
    containerEdits: CdiContainerEdits
    """The same as a CDI file has it."""


class MpsConfig(TypedDict):
    config: str
    """The text of the file, TOML."""


# -- changes, and the whole host ---------------------------------------------------------------------


class RestoreFailure(TypedDict):
    message: str
    hint: str


class VgpuRestore(TypedDict):
    plans: list[Plan]
    """Those of a dry run, which `vfioctl apply` runs."""
    outcomes: list[Outcome]
    failures: dict[str, RestoreFailure]
    """By the file of what is persistent."""


class PersistList(TypedDict):
    persistent: list[Persistent]
    switched_off: str
    """The file or kernel argument that keeps vfioctl from restoring anything; empty if there is none."""
    outdated_initramfs: str
    """Why the initramfs has not what is persistent now, and the command that renews it; empty if it is not known to be
    outdated."""


class StateRefusal(TypedDict):
    name: str
    """The device or vGPU, as the document names it."""
    message: str
    hint: str


class StateChanges(TypedDict):
    """What `state apply` has changed, or would change. The exit code is that of the first refusal, if there is one."""

    changed: bool
    """Whether the host was changed, or would be."""
    plans: list[Plan]
    """Those of a dry run, which `vfioctl apply` runs."""
    later: list[Later]
    """In a dry run, what is planned when the plans are done."""
    outcomes: list[Outcome]
    refused: list[StateRefusal]


class Outcomes(TypedDict):
    outcomes: list[Outcome]


class Repairs(TypedDict):
    repairs: list[Repair]


class History(TypedDict):
    entries: list[JournalEntry]


class Pruned(TypedDict):
    changes: list[int]
    """The changes that were selected."""
    deleted: int
    """0 in a dry run."""


class SavedRom(Rom):
    """The expansion ROM of a function, and where it was written."""

    sound: bool = Field(description="whether it has no faults")
    file: str | None


class BundledHost(TypedDict):
    name: str
    description: str


class BundledHosts(TypedDict):
    hosts: list[BundledHost]


class ResetHost(TypedDict):
    name: str
    file: str


class RebootedHost(ResetHost):
    boot_id: str


class CheckedConfig(TypedDict):
    """A configuration without problems. Those of another one are `facts.problems` of the error."""

    file: str
    exists: bool
    problems: list[str]
    """Always empty."""


class Holders(TypedDict):
    believed_users: list[str]


class Domains(TypedDict):
    connect: str


class Settings(TypedDict):
    """The settings in force, with the tables and keys of the file."""

    file: str
    exists: bool
    timeouts: dict[str, str]
    """Durations such as 30s."""
    holders: Holders
    claims: ClaimSettings
    domain: Domains
    kubelet: KubeletSettings
    sharing: SharingSettings
    sources: dict[str, dict[str, str]]
    """`file` or `default`, by table and key."""


CHANGE = ("plan", "outcome")
"""A dry run's plan, which `vfioctl apply` runs, or the outcome."""
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "inventory": ("inventory",),
    "show": ("function",),
    "rom": ("rom",),
    "bind": CHANGE,
    "unbind": CHANGE,
    "reset": CHANGE,
    "vgpu types": ("vgpu-types",),
    "vgpu list": ("vgpu-list",),
    "vgpu show": ("vgpu",),
    "vgpu create": CHANGE,
    "vgpu remove": CHANGE,
    "vgpu restore": ("vgpu-restore",),
    "sriov set": CHANGE,
    "sriov off": CHANGE,
    "sriov profile": CHANGE,
    "install": CHANGE,
    "uninstall": CHANGE,
    "persist list": ("persist-list",),
    "persist check": ("persist-list",),
    "persist remove": CHANGE,
    "persist import": CHANGE,
    "persist restore": ("vgpu-restore",),
    "state show": ("state-show",),
    "state assert": ("state-assert",),
    "state apply": ("state-apply",),
    "reconcile": ("reconcile",),
    "place": ("place",),
    "claim create": ("claim", "claim-create-dry-run"),
    "claim list": ("claims",),
    "claim show": ("claim-show",),
    "claim watch": ("claim-event",),
    "claim release": ("claims", "claim-release-dry-run"),
    "claim renew": ("claims",),
    "claim transfer": ("claims",),
    "claim adopt": ("claim",),
    "cdi generate": (*CHANGE, "cdi-export"),
    "cdi list": ("cdi-list",),
    "cdi validate": ("cdi-validate",),
    "oci inject": ("oci-inject",),
    "kata check": ("kata-check",),
    "kubelet status": ("kubelet-status",),
    "kubelet cordon": ("kubelet-cordon",),
    "kubelet uncordon": ("kubelet-uncordon",),
    "share allow": CHANGE,
    "share allowed": ("share-allowed",),
    "share disallow": CHANGE,
    "share plan": ("share-plan",),
    "share serve": ("gpu-time",),
    "share thaw": ("share-thaw",),
    "mps start": CHANGE,
    "mps stop": CHANGE,
    "mps apply": CHANGE,
    "mps status": ("mps-status",),
    "mps env": ("mps-env",),
    "mps config": ("mps-config",),
    "domain start": ("domain-start", "domain-start-preview"),
    "domain stop": ("domain-stop",),
    "domain apply": ("domain-apply",),
    "domain build": ("domain-build",),
    "domain check": ("domain-check",),
    "domain edit": CHANGE,
    "domain diff": ("domain-diff",),
    "domain verify": ("domain-verify",),
    "domain define": CHANGE,
    "domain undefine": CHANGE,
    "domain list": ("domain-list",),
    "domain show": ("domain-show",),
    "hook install": CHANGE,
    "hook remove": CHANGE,
    "doctor": ("doctor",),
    "holders": ("holders",),
    "watch": ("host-event",),
    "history": ("history",),
    "history show": ("history-show",),
    "history prune": ("history-prune",),
    "config check": ("config-check",),
    "config show": ("config-show",),
    "hosts": ("hosts", "hosts-reset"),
    "hosts reboot": ("hosts-reboot",),
    "apply": ("outcome", "outcomes"),
    "recover": ("outcomes", "recover-dry-run"),
}
"""The schemas of what each command prints with --json if it succeeds: one of them."""
