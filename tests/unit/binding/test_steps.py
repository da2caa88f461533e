"""From any bindings to any bindings: the writes lead there, in the safe order, and then there is nothing to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import REGISTRY, copy, original, unhurried
from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding, Bindings, binding_in, same_driver
from vfioctl.binding.resources.driver import binding_change, module_change, modules_for
from vfioctl.core.change import Change, Step
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.facts import read_facts
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.simulated.host import Simulated

NATIVE = {
    PciAddress(f"0000:0b:00.{number}"): driver
    for number, driver in enumerate(("nvidia", "snd_hda_intel", "xhci_hcd", "nvidia-gpu"))
}
FUNCTIONS = tuple(NATIVE)
GPU = FUNCTIONS[0]


def bindings(address: PciAddress, *, goal: bool = False) -> st.SearchStrategy[Binding]:
    """Any state of a function, or any wish for it."""
    native = NATIVE[address]
    drivers = [None, native, "vfio-pci", *([KERNEL_CHOICE] if goal else [])]
    overrides = [None, native, "vfio-pci", "none"]
    return st.builds(Binding, st.sampled_from(drivers), st.sampled_from(overrides), st.just(()))


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[PciAddress, Binding], dict[PciAddress, Binding]]:
    """What one to four functions are, and what they shall be."""
    some = draw(st.lists(st.sampled_from(FUNCTIONS), min_size=1, unique=True))
    now = {address: draw(bindings(address)) for address in some}
    goal = {a: draw(st.one_of(bindings(a, goal=True), st.just(now[a]))) for a in some}
    free = Binding(driver=KERNEL_CHOICE, driver_override=None)  # the kernel does not choose where an override does
    return now, {a: free if wanted.driver == KERNEL_CHOICE else wanted for a, wanted in goal.items()}


def changes_between(now: Bindings, goal: Bindings) -> list[Change]:
    return [binding_change(address, now[address], wanted) for address, wanted in goal.items()]


def modules_of(*names: str) -> list[Change]:
    return [module_change(name, GPU) for name in names]


def steps(now: Bindings, goal: Bindings, before: Sequence[Change] = ()) -> tuple[Step, ...]:
    return tuple(owned.step for owned in REGISTRY.steps([*before, *changes_between(now, goal)]))


def kind_of(step: Step) -> str:
    """`load`, `unheld`, or the name of the file that is written."""
    return step.target.rpartition("/")[2] if step.target.startswith("/") else step.action


def carried_out(now: Bindings, todo: tuple[Step, ...]) -> dict[PciAddress, Binding]:
    """What Linux makes of the writes, in the fewest words: an override decides, else the ids."""
    state = dict(now)
    for step in todo:
        if step.action == "unheld":
            assert all(state[PciAddress(a)].driver for a in step.target.split()), "nobody holds what has no driver"
            continue
        if kind_of(step) == "driver_override":
            address = PciAddress(step.target.split("/")[-2])
            name = None if step.value == "\n" else step.value
            state[address] = Binding(driver=state[address].driver, driver_override=name)
            continue
        address = PciAddress(step.value)
        driver, override = state[address].driver, state[address].driver_override
        if kind_of(step) == "unbind":
            assert step.target == f"{PCI_DRIVERS}/{driver}/unbind", "ENODEV: not bound to that driver"
            driver = None
        elif driver is None and override in (None, NATIVE[address], "vfio-pci"):
            driver = override or NATIVE[address]
        state[address] = Binding(driver=driver, driver_override=override)
    return state


@unhurried
@given(changes())
def test_the_steps_lead_to_the_goal(change: tuple[Bindings, Bindings]) -> None:
    now, goal = change
    found = carried_out(now, steps(now, goal))
    for address, wanted in goal.items():
        assert found[address].meets(wanted)
        if wanted.driver == KERNEL_CHOICE:
            assert found[address].driver == NATIVE[address]
        else:
            assert found[address] == wanted


@unhurried
@given(changes())
def test_at_the_goal_there_is_nothing_to_do(change: tuple[Bindings, Bindings]) -> None:
    now, goal = change
    found = carried_out(now, steps(now, goal))
    assert steps(found, goal) == ()
    assert steps(now, now) == ()


@unhurried
@given(changes())
def test_the_order_is_a_check_overrides_unbinds_probes(change: tuple[Bindings, Bindings]) -> None:
    now, goal = change
    todo = " ".join(kind_of(step) for step in steps(now, goal, modules_of("one", "two")))
    order = r"load load( unheld)?( driver_override)*( unbind)*( drivers_probe)*( driver_override)*"
    assert re.fullmatch(order, todo)


@unhurried
@given(changes())
def test_all_that_lose_their_driver_are_asked_for_together(change: tuple[Bindings, Bindings]) -> None:
    todo = steps(*change)
    unbound = [step.value for step in todo if kind_of(step) == "unbind"]
    asked = [step.target.split() for step in todo if step.action == "unheld"]
    assert asked == ([unbound] if unbound else [])


@unhurried
@given(changes())
def test_what_is_as_it_should_be_is_left_alone(change: tuple[Bindings, Bindings]) -> None:
    now, goal = change
    writes = [step for step in steps(now, goal) if step.target.startswith("/")]
    touched = {step.value for step in writes} | {step.target.split("/")[-2] for step in writes}
    assert {step.subject for step in writes} == touched & set(goal)
    for address in goal:
        assert (address in touched) == (not now[address].settled(goal[address]))


@unhurried
@given(changes())
def test_while_it_moves_nothing_else_can_take_it(change: tuple[Bindings, Bindings]) -> None:
    now, goal = change
    for address, wanted in goal.items():
        mine = [s for s in steps(now, goal) if s.subject == address]
        aim = now[address].driver_override
        for step in mine:
            if kind_of(step) == "driver_override":
                aim = None if step.value == "\n" else step.value
            elif kind_of(step) == "drivers_probe" and wanted.driver != KERNEL_CHOICE:
                assert aim == wanted.driver


def simulated(state: Bindings) -> Simulated:
    """The simulated kernel with the functions in those states."""
    kernel = Simulated(copy(original("workstation")), "")
    kernel.load("vfio-pci")
    for address, wanted in state.items():
        kernel.write(f"{PCI_DRIVERS}/{NATIVE[address]}/unbind", address)
        if wanted.driver:
            kernel.write(f"{PCI_DEVICES}/{address}/driver_override", wanted.driver)
            kernel.write(DRIVERS_PROBE, address)
        kernel.write(f"{PCI_DEVICES}/{address}/driver_override", wanted.driver_override or "\n")
    return kernel


def found_in(kernel: Simulated, addresses: Bindings) -> dict[PciAddress, Binding]:
    return {PciAddress(address): binding_in(fact) for address, fact in read_facts(kernel, addresses).items()}


@unhurried
@given(changes())
def test_the_simulated_kernel_agrees(change: tuple[Bindings, Bindings]) -> None:
    now, goal = change
    kernel = simulated(now)
    assert found_in(kernel, now) == now
    needed = [need for change in changes_between(now, goal) for need in REGISTRY.resource(change).needs(kernel, change)]
    for step in steps(now, goal, needed):
        if step.action == "load":
            kernel.load(step.target)
        elif step.action != "unheld":
            kernel.write(step.target, step.value)
    assert found_in(kernel, now) == carried_out(now, steps(now, goal))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("vfio-pci", "vfio_pci", True),
        ("nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci", True),
        (None, None, True),
        ("vfio-pci", None, False),
        (None, "nvidia", False),
        ("nvidia", "nvidia-gpu", False),
        ("a_b", "ab", False),
    ],
)
def test_a_driver_is_the_same_with_either_dash(
    one: str | None,
    other: str | None,
    same: bool,
) -> None:
    assert same_driver(one, other) is same
    assert same_driver(other, one) is same


@pytest.mark.parametrize(
    ("driver", "override", "meets", "settled"),
    [
        (None, None, True, False),
        ("nvidia", None, True, True),
        ("vfio-pci", None, False, False),
        ("nvidia", "nvidia", False, False),
        ("nvgrace_gpu_vfio_pci", None, False, False),
    ],
)
def test_the_kernels_choice_is_anything_but_vfio(
    driver: str | None,
    override: str | None,
    meets: bool,
    settled: bool,
) -> None:
    goal = Binding(driver=KERNEL_CHOICE, driver_override=None)
    found = Binding(driver=driver, driver_override=override)
    assert (found.meets(goal), found.settled(goal)) == (meets, settled)


def test_each_step_says_what_it_is_for() -> None:
    now, goal = Binding(driver="nvidia", driver_override=None), Binding(driver="vfio-pci", driver_override="vfio-pci")
    assert [step.why for step in steps({GPU: now}, {GPU: goal}, modules_of("vfio-pci"))] == [
        "its driver is not registered yet",
        "a device in use is not taken",
        "so that no other driver can take it",
        "nvidia releases it",
        "vfio-pci takes it",
    ]
    assert [step.why for step in steps({GPU: goal}, {GPU: Binding(driver=KERNEL_CHOICE, driver_override=None)})] == [
        "a device in use is not taken",
        "no override any more",
        "vfio-pci releases it",
        "the kernel chooses a driver",
    ]


class TestText:
    """A binding as plans have it."""

    @pytest.mark.parametrize(
        ("binding", "text"),
        [
            (Binding(None), "no driver"),
            (Binding("nouveau"), "nouveau"),
            (Binding(None, "vfio-pci"), "no driver, override vfio-pci"),
            (Binding("vfio-pci", "vfio-pci"), "vfio-pci, override vfio-pci"),
            (Binding("a_b-c", "a_b-c", ("a-b-c", "a_b_c")), "a_b-c or a-b-c or a_b_c, override a_b-c"),
            (Binding(KERNEL_CHOICE), "(kernel's choice)"),
        ],
    )
    def test_is_read_as_it_is_written(self, binding: Binding, text: str) -> None:
        assert binding.text == text
        assert Binding.parse(text) == binding

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "a/b",
            "../x",
            "a\n",
            "nvidia, override ",
            " or x",
            "nvidia, override a/../b",
            "x" * 101,
            "a, override b\0",
        ],
    )
    def test_of_a_hostile_plan_is_refused(self, text: str) -> None:
        for before, after in ((text, "nvidia"), ("nvidia", text)):
            change = Change(kind="binding", name=GPU, subject=GPU, before=before, after=after)
            with pytest.raises(ValueError, match="not a binding"):
                REGISTRY.resource(change).validate(change)

    @pytest.mark.parametrize("name", ["", "0000:0b:00.1", "../0000:0b:00.0", "0b:00.0", "0000:0B:00.0"])
    def test_is_of_the_function_that_it_names(self, name: str) -> None:
        change = Change(kind="binding", name=name, subject=GPU, before="nvidia", after="vfio-pci")
        with pytest.raises(ValueError, match="not a function"):
            REGISTRY.resource(change).validate(change)


def test_a_binding_is_read_also_without_an_override_file() -> None:
    """Kernels before 3.16 have no driver_override; a function that is gone has no binding at all."""
    tree, gpu, gone = copy(original("laptop")), PciAddress("0000:01:00.0"), PciAddress("0000:ff:00.0")
    del tree.files[tree.resolve(f"{PCI_DEVICES}/{gpu}/driver_override")]
    read = {
        address: REGISTRY.resource(change).read(Recorded(tree, ""), change)
        for address in (gpu, gone)
        for change in [binding_change(address, Binding("nouveau"), Binding("vfio-pci"))]
    }
    assert read == {gpu: Binding("nouveau").text, gone: None}


@pytest.mark.parametrize(
    ("driver", "available", "loaded"),
    [
        ("nouveau", ["nvidiafb", "nouveau"], ["nouveau"]),
        ("nvidia", ["nvidia_drm", "nouveau", "vfio-pci"], ["nvidia_drm", "nouveau"]),
        ("nvidia", ["vfio-pci"], ["nvidia"]),
        ("vfio-pci", ["nouveau"], ["vfio-pci"]),
    ],
)
def test_the_module_of_a_driver_else_those_of_the_device_are_loaded(
    driver: str, available: list[str], loaded: list[str]
) -> None:
    assert modules_for(driver, available) == loaded
