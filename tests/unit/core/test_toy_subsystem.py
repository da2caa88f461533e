"""A subsystem of one resource, one verb, one api and one command: a folder and a row, and nothing else is changed.

The folder is tests/toy. The kernel alone must be told of toys: it has no rule for their files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import marks_of
from tests.hosts.machines import HOSTS, copy, original
from tests.toy.api import ToyApi
from tests.toy.model import LabelIntent
from tests.unit.conftest import Run
from vfioctl import subsystems
from vfioctl.core.change import JournalState, Plan, Result
from vfioctl.core.events import EventKind, StepEvent
from vfioctl.errors import BadDocument, KernelRefused, StalePlan, Stuck, Unfinished, VerifyError
from vfioctl.host import Host
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.kernel.simulated import rules
from vfioctl.kernel.simulated.faults import DIE, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session
from vfioctl.subsystems import CHANGE, SUBSYSTEMS, Command, Subsystem

TOY = Subsystem(
    name="toy",
    cli="tests.toy.cli",
    commands={"label": Command(CHANGE, "Give toys a label.")},
    api="tests.toy.api:ToyApi",
    parts="tests.toy.parts:PARTS",
)
ALL = (*SUBSYSTEMS, TOY)
TOYS = ("bear", "ball", "boat")


def file_of(toy: str) -> str:
    return f"/sys/devices/toys/{toy}/label"


@pytest.fixture(autouse=True)
def toys_take_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated kernel's rule for the new file."""
    known = rules._store_of

    def store_of(tree: Tree, path: str) -> Callable[[Tree, str, str], None] | None:
        return Tree.put if path.startswith("/sys/devices/toys/") else known(tree, path)

    monkeypatch.setattr(rules, "_store_of", store_of)


class Nursery:
    """A host with three toys."""

    def __init__(self, folder: Path, *faults: Fault, kernel: type[Simulated] = Simulated) -> None:
        self.tree = copy(original("laptop"))
        for toy in TOYS:
            self.tree.put(file_of(toy), "old")
        self.ledger = folder / "x.db"
        self.restart(*faults, kernel=kernel)

    def restart(self, *faults: Fault, kernel: type[Simulated] = Simulated) -> None:
        """Another process."""
        self.kernel = kernel(self.tree, "", faults=faults)
        self.host = Host(Session(self.kernel, self.ledger, settle=0.0, lock_wait=0.0, subsystems=ALL))
        self.toys = ToyApi(self.host.session)

    @property
    def labels(self) -> list[str]:
        return [self.tree.files[file_of(toy)] for toy in TOYS]

    def dies(self, at: int) -> None:
        self.restart(Fault(at, DIE))
        with pytest.raises(SimulatedDeath):
            self.host.apply(self.toys.plan_label(TOYS, "new"))
        self.restart()


@pytest.fixture
def nursery(fast_folder: Path) -> Nursery:
    return Nursery(fast_folder)


class TestPlans:
    def test_have_a_step_for_each_toy(self, nursery: Nursery) -> None:
        plan = nursery.toys.plan_label(TOYS, "new")
        assert [(step.target, step.value) for step in plan.steps] == [(file_of(toy), "new") for toy in TOYS]
        assert plan.subjects == TOYS

    def test_are_read_again_as_they_were_written(self, nursery: Nursery) -> None:
        plan = nursery.toys.plan_label(TOYS, "new")
        read = nursery.host.read_plan(plan.model_dump_json())
        assert read == plan
        assert isinstance(read.intent, LabelIntent)
        assert nursery.host.replan(read) == plan

    def test_are_not_known_without_the_row(self, nursery: Nursery) -> None:
        plan = nursery.toys.plan_label(TOYS, "new")
        other = Host(Session(nursery.kernel, nursery.ledger))
        with pytest.raises(BadDocument, match="no verb 'label' is known here"):
            other.read_plan(plan.model_dump_json())

    def test_are_stale_when_a_label_has_changed(self, nursery: Nursery) -> None:
        plan = nursery.toys.plan_label(TOYS, "new")
        nursery.tree.put(file_of("ball"), "mine")
        with pytest.raises(StalePlan, match="ball changed after the plan was made"):
            nursery.host.apply(plan)
        with pytest.raises(StalePlan):
            nursery.host.replan(plan)
        assert nursery.labels == ["old", "mine", "old"]

    def test_that_are_forged_are_refused(self, nursery: Nursery) -> None:
        plan = nursery.toys.plan_label(TOYS, "new")
        for edit in (
            {"steps": plan.steps[1:]},
            {"intent": LabelIntent(toys=TOYS[:1], text="new")},
            {"changes": (plan.changes[0].model_copy(update={"name": "/etc/passwd"}), *plan.changes[1:])},
        ):
            other = plan.model_copy(update={**edit, "id": ""})
            forged = Plan.model_validate(other.model_copy(update={"id": other.digest()}))
            with pytest.raises(BadDocument, match="do not follow"):
                nursery.host.apply(forged)
        assert nursery.labels == ["old"] * 3


class TestChanges:
    def test_are_made_and_told(self, nursery: Nursery) -> None:
        events: list[StepEvent] = []
        outcome = nursery.host.apply(
            nursery.toys.plan_label(TOYS, "new"),
            progress=events.append,
        )
        assert (outcome.result, nursery.labels) == (Result.DONE, ["new"] * 3)
        begun = [(e.step.subject, e.number, e.total) for e in events if e.kind == EventKind.BEGIN and e.step]
        assert begun == [("bear", 1, 3), ("ball", 2, 3), ("boat", 3, 3)]
        assert [change.after for change in outcome.changes] == ["new"] * 3
        assert nursery.host.history()[0].plan.intent.title() == "label bear, ball, boat new"
        assert nursery.toys.plan_label(TOYS, "new").nothing_to_do

    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_that_the_kernel_refuses_are_taken_back(self, fast_folder: Path, at: int) -> None:
        nursery = Nursery(fast_folder, Fault(at, "errno", 5))
        with pytest.raises(KernelRefused) as caught:
            nursery.host.apply(nursery.toys.plan_label(TOYS, "new"))
        assert caught.value.restored == "bear, ball, boat put back as before"
        assert nursery.labels == ["old"] * 3

    def test_that_do_not_hold_are_taken_back(self, fast_folder: Path) -> None:
        class Torn(Simulated):
            """A child tears the new label off the last toy at once."""

            def write(self, path: str, value: str) -> None:
                super().write(path, value)
                if (path, value) == (file_of("boat"), "new"):
                    self.tree.put(path, "old")

        nursery = Nursery(fast_folder, kernel=Torn)
        with pytest.raises(VerifyError) as caught:
            nursery.host.apply(nursery.toys.plan_label(TOYS, "new"))
        assert caught.value.message == "boat label should be new, and is old"
        assert caught.value.hint == "a child may have torn it off"
        assert caught.value.restored == "bear, ball, boat put back as before"
        assert nursery.labels == ["old"] * 3
        assert nursery.host.history()[0].state == JournalState.BACK

    def test_that_hang_mark_the_toy_and_are_recovered(self, fast_folder: Path) -> None:
        class Hung(Simulated):
            """The second write does not return before its toy is released."""

            released = False

            def write(self, path: str, value: str) -> None:
                if path == file_of("ball") and not Hung.released:
                    raise Stuck("writing did not return", facts={"ticket": "1:2"})
                super().write(path, value)

            def write_ended(self, ticket: str) -> str | None:
                assert ticket == "1:2"
                return "returned" if Hung.released else None

        nursery = Nursery(fast_folder, kernel=Hung)
        with pytest.raises(Stuck) as caught:
            nursery.host.apply(nursery.toys.plan_label(TOYS, "new"))
        assert caught.value.facts["address"] == "ball"
        assert marks_of(nursery.host).keys() == {"ball"}
        assert nursery.host.inventory().functions, "nobody takes a toy for a function"
        with pytest.raises(Stuck, match="ball is still wedged"):
            nursery.host.recover()
        Hung.released = True
        assert nursery.host.recover()[0].result == Result.BACK
        assert (nursery.labels, marks_of(nursery.host)) == (["old"] * 3, {})


class TestCrashes:
    @pytest.mark.parametrize("at", [1, 2])
    def test_are_taken_back(self, nursery: Nursery, at: int) -> None:
        nursery.dies(at)
        with pytest.raises(Unfinished, match="bear"):
            nursery.host.apply(nursery.toys.plan_label(["bear"], "other"))
        assert [outcome.result for outcome in nursery.host.recover()] == [Result.BACK]
        assert nursery.labels == ["old"] * 3

    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_are_finished(self, nursery: Nursery, at: int) -> None:
        nursery.dies(at)
        whole = at == 3
        (outcome,) = nursery.host.recover(forward=True)
        assert outcome.result == (Result.COMPLETE if whole else Result.DONE)
        assert nursery.labels == ["new"] * 3

    def test_of_what_was_done_already_only_say_so(self, nursery: Nursery) -> None:
        nursery.dies(3)
        assert nursery.host.recover()[0].result == Result.COMPLETE
        assert nursery.labels == ["new"] * 3

    def test_keep_no_other_subsystem_from_its_work(self, nursery: Nursery) -> None:
        nursery.dies(2)
        plan = nursery.host.binding.plan_bind(["01:00.0"])
        assert nursery.host.apply(plan).result == Result.DONE
        assert nursery.host.recover()[0].result == Result.BACK
        assert nursery.labels == ["old"] * 3

    def test_leave_to_others_what_they_have_set_since(self, nursery: Nursery) -> None:
        nursery.dies(2)
        nursery.tree.put(file_of("bear"), "mine")
        assert nursery.host.recover()[0].result == Result.BACK
        assert nursery.labels == ["mine", "old", "old"]


class TestCommand:
    """The command row alone makes a command of it."""

    @pytest.fixture
    def file(self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(subsystems, "SUBSYSTEMS", ALL)
        monkeypatch.setitem(Session.__init__.__kwdefaults__, "subsystems", ALL)  # type: ignore[arg-type] # it has some
        tree = read_tree(HOSTS / "laptop.host")
        for toy in TOYS:
            tree.put(file_of(toy), "old")
        file = fast_folder / "nursery.host"
        file.write_text(form(tree), encoding="utf-8")
        return file

    def test_is_listed_and_shows_its_plan(self, file: Path, run: Run) -> None:
        assert "Give toys a label." in run("--help").out
        shown = run(f"label bear ball --text new --dry-run --simulate {file}").out
        assert [line.strip() for line in shown.splitlines() if line][1:] == [
            "Steps",
            f"1  {file_of('bear')} <- new",
            f"2  {file_of('ball')} <- new",
            "(a toy has one label)",
            "What changes",
            "bear label  old  ->  new",
            "ball label  old  ->  new",
            "Verified afterwards",
            "every value above is read again and must be as planned",
            "otherwise everything is rolled back",
            "Undone by",
            f"vfioctl label bear --text old --simulate {file}",
            f"vfioctl label ball --text old --simulate {file}",
        ]

    def test_changes_what_it_shows(self, file: Path, run: Run, tmp_path: Path) -> None:
        saved = tmp_path / "plan.json"
        saved.write_text(run(f"label bear --text new --dry-run --json --simulate {file}").out, encoding="utf-8")
        assert run(f"apply {saved} --yes --simulate {file}").code == 0
        assert read_tree(file).files[file_of("bear")] == "new"
        assert run(f"apply {saved} --yes --simulate {file}").code == StalePlan.exit_code
        (entry,) = run(f"history --json --simulate {file}").document["entries"]
        assert (entry["state"], entry["plan"]["intent"]["verb"]) == ("done", "label")
        assert "label bear new" in run(f"history --simulate {file}").out

    def test_that_is_refused_says_so(self, file: Path, run: Run) -> None:
        answer = run(f"label train --text new --yes --simulate {file}")
        assert (answer.code, "there is no toy train" in answer.err) == (2, True)


def test_nobody_else_knows_of_toys() -> None:
    """But for the tests, of course."""
    assert not any("toy" in source.read_text().lower() for source in (HOSTS.parents[1] / "vfioctl").rglob("*.py"))
