"""Who may import whom, read from the sources: what docs/architecture.md draws is what holds."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "vfioctl"


def _shared(name: str) -> tuple[str, ...]:
    """What a subsystem may import of those before it."""
    before = SUBSYSTEMS[: SUBSYSTEMS.index(name)]
    return tuple(f"{other}.{part}" for other in before for part in SHARED)


SUBSYSTEMS = (
    "inventory",
    "binding",
    "vgpu",
    "placement",
    "claims",
    "access",
    "containers",
    "domain",
    "persist",
    "state",
    "doctor",
    "kubelet",
    "sharing",
    "overview",
)
"""In the order in which each may import those before it."""
BELOW = ("errors", "signals", "units", "untrusted_text", "kernel", "core", "session")
WRITES = ("kernel.files", "kernel.lock", "kernel.trusted")
"""How the core writes the ledger and what it publishes of it."""
SHARED = ("model", "api")
"""What one subsystem may import of another."""

# Each part, and what of vfioctl it may import besides itself.
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "units": ("errors",),
    "untrusted_text": (),
    "environment": (),
    "signals": (),
    "subsystems": (),
    "kernel": ("errors", "signals", "environment", "units", "untrusted_text"),
    "config": (
        "errors",
        "kernel.open_nodes",
        "kernel.untrusted_files",
        "kernel.timeouts",
        "subsystems",
        "units",
        "untrusted_text",
    ),
    "settings": ("errors", "config", "core.limits", "core.locations", "core.value", "subsystems"),
    "journald": ("console.words", "core.logs"),
    "core": ("errors", "signals", "untrusted_text", "kernel.protocol", "kernel.lenient", "kernel.lock_holder", *WRITES),
    "console": ("errors", "units", "core", "kernel.files", "kernel.recorded.bundled"),
    "published_ledger": ("errors", "core"),
    "session": ("errors", "config", "settings", "kernel", "core", "subsystems", "published_ledger"),
    "sources": ("errors", "config", "kernel", "published_ledger", "session"),
    "serving": ("errors", "core", "console"),
    **{name: (*BELOW, "console", *_shared(name)) for name in SUBSYSTEMS},
    **{name: (*BELOW, "console", "serving", *_shared(name)) for name in ("kubelet", "sharing")},
    "claims": (*BELOW, "console", *_shared("claims"), "placement.render"),
    "overview": (*BELOW, "console", *_shared("overview"), "inventory.render"),
    "host": (
        "errors",
        "kernel",
        "core",
        "session",
        "sources",
        *(f"{name}.{part}" for name in SUBSYSTEMS for part in SHARED),
    ),
    "commands": (*BELOW, "environment", "config", "settings", "console", "host", "inventory.api", "inventory.render"),
    "tui": (
        *("errors", "units", "signals", "core", "console", "host", "overview"),
        *(f"{name}.{part}" for name in SUBSYSTEMS for part in (*SHARED, "render")),
    ),
    "opening": ("core", "kernel", "console", "session", "sources", "journald"),
    "app": ("errors", "signals", "environment", "console", "session", "subsystems", "opening"),
}
# The rooms of each subsystem, and its loose modules, from the ground up: each imports only those before it.
ROOMS: dict[str, tuple[str, ...]] = {
    "inventory": ("model", "selection", "probe", "actions", "parts", "api", "render", "cli"),
    "binding": (
        *("model", "render", "resources", "checks", "actions", "records", "migrations", "plan", "probe"),
        *("parts", "api", "cli"),
    ),
    "vgpu": (
        *("model", "dialects", "placement", "ledger", "probe", "render", "resources", "checks"),
        *("plan", "lifecycle", "parts", "api", "cli"),
    ),
    "placement": ("model", "probe", "choosing", "explaining", "place", "api", "render"),
    "claims": ("model", "ledger", "probe", "lifecycle", "reconcile", "parts", "api", "render", "cli"),
    "access": ("model", "resources", "plan", "parts", "api"),
    "containers": ("cdi", "oci", "kata", "parts", "api", "render", "cli"),
    "domain": (
        *("model", "document", "probe", "check", "build", "resources", "run", "define"),
        *("actions", "parts", "api", "render", "cli"),
    ),
    "persist": ("model", "packaged", "resources", "probe", "plan", "lifecycle", "parts", "api", "render", "cli"),
    "state": ("model", "plan", "files", "api", "render", "cli"),
    "doctor": ("model", "probe", "checks", "reading", "report", "api", "render", "cli"),
    "kubelet": (
        *("proto", "model", "ledger", "choosing", "answer", "reading", "allocating", "serving"),
        *("api", "render", "cli"),
    ),
    "sharing": (
        *("model", "probe", "enforcing", "allowing", "mps", "extender", "measuring", "fairness", "throttling"),
        *("serving", "parts", "api", "render", "cli"),
    ),
    "overview": ("model", "watch", "reading", "api", "render", "cli"),
}
LOOSE = {"api", "parts", "actions", "checks", "records", "migrations", "render", "place", "resources", "packaged"}
"""The modules that may stand beside the rooms: what a subsystem registers, and a room of one module."""
# What a pure room may import besides its own subsystem's pure rooms and the models of others.
VALUES = (
    "errors",
    "units",
    "untrusted_text",
    "console.words",
    "core.change",
    "core.value",
    "core.frozen",
    "core.limits",
    "core.marks",
    "core.reservations",
    "kernel.host_paths",
    "kernel.protocol",
    "serving.address",
)
# Rooms that do no input or output, also inside a room. What else each may import has its reason beside it.
PURE: dict[str, tuple[str, ...]] = {
    **{f"{name}.model": () for name in SUBSYSTEMS},
    "inventory.selection": (),
    "binding.plan": ("binding.checks", "binding.resources"),  # whose changes and steps it makes
    "vgpu.placement": (),
    "persist.plan": (),
    "state.plan": (),
    "vgpu.plan": ("vgpu.resources",),  # whose changes it makes
    "vgpu.dialects": ("kernel.lenient",),  # reads through the protocol, in workers
    "placement.choosing": (),
    "placement.explaining": (),
    "placement.place": (),
    "doctor.checks": (),
    "kubelet.choosing": (),
    "kubelet.answer": (),
    "kubelet.allocating.requests": (),
    "sharing.enforcing": (),
    "sharing.fairness": (),
    "sharing.measuring.gpus": (),
    "sharing.measuring.names": (),
    "sharing.measuring.nvml_time": ("kernel.gpu_sharing",),  # whose values it adds up
    "sharing.measuring.drm_fdinfo": (),
    "sharing.measuring.drm_time": (),
    "sharing.measuring.lease_time": (),
    "sharing.extender.names": (),
    "sharing.extender.packing": (),
    "sharing.extender.report": (),
    "sharing.extender.reading": (),
    "sharing.extender.annotations": ("sharing.extender.table",),  # whose value it takes
    "sharing.mps.share": (),
    "sharing.mps.daemon": ("kernel.mps",),  # which modes there are
    "sharing.mps.answers": (),
    "sharing.mps.config": (),
    "sharing.mps.intents": (),
    "sharing.mps.status": (),
    "sharing.mps.plan": (),
    "domain.document": ("kernel.untrusted_files",),  # templates are files
    "domain.check.rules": (),
    "domain.build.layout": (),
    "domain.run.verify": (),
}
# Rooms that read the host, and cannot write: a `FileReader` has no method that does.
READING = (*VALUES, "core.reading", "kernel.lenient", "kernel.libvirt", "kernel.modalias", "kernel.open_nodes")


# A plan is made of values only: the same question gives the same plan.
IMPURE = {"os", "subprocess", "time", "random", "uuid", "datetime", "pathlib", "io", "socket", "secrets", "tempfile"}
# At home in one folder each, and imported only when needed: they are slow, or absent on many hosts.
OPTIONAL = {"pyudev", "pynvml", "libvirt", "libvirt_qemu", "yaml", "pycdlib"}
# At home in some rooms of one subsystem, which no other room imports before it needs them.
OF_ROOMS = {
    "grpclib": ("kubelet.serving",),
    "prometheus_client": ("kubelet.serving", "sharing.serving", "sharing.extender"),
    "google": ("kubelet.proto", "kubelet.serving"),
}
# What only the parts that print may know.
FOR_PRINTING = {
    "rich": {"render", "render.py", "cli", "console", "tui"},
    "typer": {"cli", "console", "commands", "completion.py"},
    "click": {"cli"},
}


class Import:
    """One import of one module: by whom, from where, and whether it runs when the importer is loaded."""

    def __init__(self, importer: Path, target: str, line: int, *, at_once: bool, at_run: bool) -> None:
        self.importer, self.target, self.line = importer, target, line
        self.at_once, self.at_run = at_once, at_run

    @property
    def rooms(self) -> tuple[str, ...]:
        return tuple(part.removesuffix(".py") for part in self.importer.relative_to(PACKAGE).parts)

    @property
    def part(self) -> str:
        return self.importer.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @property
    def library(self) -> str:
        return self.target.split(".")[0]

    def __str__(self) -> str:
        return f"{self.importer.relative_to(PACKAGE.parent)}:{self.line} imports {self.target}"


def _imports() -> Iterator[Import]:
    for source in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(source.read_text())
        lazy = {id(node) for block in ast.walk(tree) if _is_lazy(block) for node in ast.walk(block)}
        typing = {id(node) for block in ast.walk(tree) if _is_for_types(block) for node in ast.walk(block)}
        for node in ast.walk(tree):
            for target in _targets(node, source):
                number = getattr(node, "lineno", 0)
                yield Import(source, target, number, at_once=id(node) not in lazy, at_run=id(node) not in typing)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _is_lazy(node: ast.AST) -> bool:
    return _is_for_types(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _targets(node: ast.AST, source: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    start = node.module or ""
    if node.level:
        folder = source.parents[node.level - 1].relative_to(PACKAGE.parent)
        start = ".".join([*folder.parts, *filter(None, [node.module])])
    # `from vfioctl.kernel import protocol` names a module as well as `import vfioctl.kernel.protocol` does
    modules = [f"{start}.{alias.name}" for alias in node.names if _is_module(f"{start}.{alias.name}")]
    return modules if len(modules) == len(node.names) else [start, *modules]


def _is_module(name: str) -> bool:
    place = PACKAGE.parent.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


IMPORTS = list(_imports())
_NAMES = [[name] for name in SUBSYSTEMS]


def test_every_part_is_known() -> None:
    parts = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or _has_sources(path)}
    assert parts - {"__init__", "__main__"} <= set(ALLOWED), "say in ALLOWED what a new part may import"


def _has_sources(path: Path) -> bool:
    return path.is_dir() and any(path.rglob("*.py"))


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_lies_below_it(part: str) -> None:
    own = [found for found in IMPORTS if found.part == part and found.target.startswith("vfioctl.")]
    wrong = [str(found) for found in own if not _may(part, found.target.removeprefix("vfioctl."))]
    assert not wrong


def _may(part: str, target: str) -> bool:
    return any(target == allowed or target.startswith(f"{allowed}.") for allowed in (part, *ALLOWED[part]))


@pytest.mark.parametrize("name", SUBSYSTEMS)
def test_a_subsystem_holds_rooms_and_few_loose_modules(name: str) -> None:
    folder = PACKAGE / name
    rooms = {path.name for path in folder.iterdir() if _has_sources(path)}
    loose = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert rooms | loose == set(ROOMS[name]), "name each room in ROOMS, in its order"
    assert loose <= LOOSE, "put it into a room"


@pytest.mark.parametrize("name", SUBSYSTEMS)
def test_a_room_imports_only_rooms_below_it(name: str) -> None:
    order = ROOMS[name]
    inside = [found for found in IMPORTS if found.part == name and found.target.startswith(f"vfioctl.{name}.")]
    wrong = [str(found) for found in inside if order.index(found.target.split(".")[2]) > order.index(found.rooms[1])]
    assert not wrong


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_imports_values_only(room: str) -> None:
    """What it imports for its types only does not run, and counts for the order of rooms alone."""
    name = room.split(".", maxsplit=1)[0]
    own = tuple(other for other in PURE if other.startswith(f"{name}."))
    allowed = (*VALUES, *PURE[room], *own, *(f"{other}.model" for other in SUBSYSTEMS))
    wrong = [str(found) for found in _of_room(room) if found.at_run and not _within(found.target, allowed)]
    assert not wrong


@pytest.mark.parametrize("name", SUBSYSTEMS)
def test_a_probe_reads_through_the_protocols_only(name: str) -> None:
    allowed = (*READING, name, *(f"{other}.model" for other in SUBSYSTEMS))
    wrong = [str(found) for found in _of_room(f"{name}.probe") if found.at_run and not _within(found.target, allowed)]
    assert not wrong


def _of_room(room: str) -> list[Import]:
    parts = tuple(room.split("."))
    return [found for found in IMPORTS if found.rooms[: len(parts)] == parts and found.target.startswith("vfioctl.")]


def _within(target: str, allowed: tuple[str, ...]) -> bool:
    name = target.removeprefix("vfioctl.")
    return any(name == part or name.startswith(f"{part}.") for part in allowed)


def test_no_imports_run_in_a_circle() -> None:
    """Nor those that only type checkers follow: two modules that need each other are one subject."""
    imported: dict[str, set[str]] = {}
    for found in IMPORTS:
        importer = ".".join(("vfioctl", *found.rooms)).removesuffix(".__init__")
        if found.target.startswith("vfioctl.") and found.target != importer:
            imported.setdefault(importer, set()).add(found.target)
    order = TopologicalSorter(imported)
    try:
        order.prepare()
    except CycleError as error:
        circle = " <- ".join(error.args[1])
        pytest.fail(circle)


def test_no_subsystem_is_named_where_none_may_be_known() -> None:
    """The engine and the console reach subsystems only through what these have registered."""
    known = [f for f in IMPORTS if f.part in ("core", "console", "kernel") and f.target.split(".")[1:2] in _NAMES]
    assert not [str(found) for found in known]


def test_plan_is_pure() -> None:
    wrong = [str(found) for found in IMPORTS if "plan" in found.importer.parts and found.library in IMPURE]
    assert not wrong


@pytest.mark.parametrize("library", sorted(OPTIONAL))
def test_an_optional_library_is_at_home_in_one_folder_and_imported_when_needed(library: str) -> None:
    uses = [found for found in IMPORTS if found.library == library]
    assert len({found.importer.parent for found in uses}) <= 1, [str(found) for found in uses]
    assert not [str(found) for found in uses if found.at_once]


@pytest.mark.parametrize("library", OF_ROOMS)
def test_a_library_of_rooms_is_at_home_there_and_loaded_when_needed(library: str) -> None:
    """Also what these rooms have without the library, such as the log of a service, is imported when it is needed."""
    rooms = OF_ROOMS[library]
    uses = [found for found in IMPORTS if found.library == library]
    assert uses
    assert not [str(found) for found in uses if ".".join(found.rooms[:2]) not in rooms]
    loaders = tuple({f"vfioctl.{'.'.join(found.rooms)}" for found in uses})
    assert not [
        str(found)
        for found in IMPORTS
        if found.target.startswith(loaders) and found.at_once and ".".join(found.rooms[:2]) not in rooms
    ]


def test_textual_is_at_home_in_what_draws_screens() -> None:
    """The rooms of `tui` that are imported before it, so that the host is read meanwhile, do without."""
    uses = [found for found in IMPORTS if found.library == "textual"]
    assert {found.part for found in uses} == {"tui"}
    assert not [str(found) for found in uses if found.rooms[1] in ("cli", "data", "model", "screens")]
    drawing = ("vfioctl.tui.app", "vfioctl.tui.widgets", "vfioctl.tui.dialogs", "vfioctl.tui.terminal")
    early = [f for f in IMPORTS if f.part == "tui" and f.rooms[1] in ("cli", "data", "model", "screens", "run")]
    assert not [str(found) for found in early if found.target.startswith(drawing) and found.at_once]


@pytest.mark.parametrize("library", sorted(FOR_PRINTING))
def test_only_what_prints_knows_how(library: str) -> None:
    wrong = [
        str(found)
        for found in IMPORTS
        if found.library == library and not FOR_PRINTING[library] & set(found.importer.parts)
    ]
    assert not wrong


def test_saying_the_version_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom vfioctl.app import main\nsys.argv = ['vfioctl', '--version']\n"
        "try:\n    main()\nfinally:\n    print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    loaded = set(done.stdout.split())
    assert "vfioctl" in loaded, done.stderr
    assert not loaded & {"pydantic", "rich", "sqlite3", "textual", *OPTIONAL, *OF_ROOMS}
