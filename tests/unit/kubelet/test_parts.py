"""Parts of GPUs: their names, their labels, and which are chosen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.core.limits import read_document
from vfioctl.kubelet.choosing.shares import chosen_parts
from vfioctl.kubelet.model.settings import DeviceKind, KubeletSettings
from vfioctl.kubelet.model.units import gpu_of, labels_for, unit_id

GPUS = ("0000:1b:00.0", "0000:43:00.0", "10000:01:00.0")
NAMES = st.builds(unit_id, st.sampled_from(GPUS), st.integers(0, 999))
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


class Claimed:
    """What `units_of` reads of a claim."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels


def units(labels: dict[str, str]) -> list[tuple[str, str]]:
    from vfioctl.kubelet.model.units import units_of

    claim: Any = Claimed(labels)
    return sorted(units_of(claim))


@given(st.sets(NAMES), st.sets(NAMES))
def test_labels_note_every_part(names: set[str], others: set[str]) -> None:
    labels = labels_for(CORE, names, MEMORY, others)
    assert units(labels) == sorted([*((CORE, name) for name in names), *((MEMORY, name) for name in others)])
    assert all(len(text) <= 253 for label in labels.items() for text in label)


@pytest.mark.parametrize("text", ["", "x", "-1", "\x1b[2J", "f" * 253, "0x_1"])
def test_labels_of_somebody_else_are_no_parts(text: str) -> None:
    found = units({"kubelet": CORE, f"kubelet-parts {GPUS[0]}": text})
    assert all(resource == CORE and gpu_of(name) == GPUS[0] for resource, name in found)
    assert len(found) <= 1000


@given(st.lists(NAMES, unique=True, min_size=1), st.data())
def test_as_many_parts_are_chosen_as_are_asked_for(available: list[str], data: st.DataObject) -> None:
    must = data.draw(st.lists(st.sampled_from(available), unique=True))
    count = data.draw(st.integers(len(must), len(available)))
    gpus = data.draw(st.permutations(GPUS))
    chosen = chosen_parts(available, must, count, gpus)
    assert len({*chosen}) == len(chosen) == count
    assert {*must} <= {*chosen} <= {*available}


def test_parts_of_the_first_gpu_are_chosen_first() -> None:
    available = [unit_id(gpu, number) for gpu in GPUS for number in range(3)]
    assert chosen_parts(available, (), 4, (GPUS[1],)) == (
        *(unit_id(GPUS[1], number) for number in range(3)),
        unit_id(GPUS[0], 0),
    )


def settings(*resources: dict[str, object]) -> KubeletSettings:
    found: KubeletSettings = read_document(KubeletSettings, {"resources": list(resources)})
    return found


def test_the_names_of_other_plugins_are_known() -> None:
    core, memory, gpu_mem = settings({"name": CORE}, {"name": MEMORY}, {"name": "aliyun.com/gpu-mem"}).resources
    assert (core.devices, core.size, core.beside) == (DeviceKind.CORES, 1, MEMORY)
    assert (memory.devices, memory.size, memory.beside) == (DeviceKind.MEMORY, 256 << 20, CORE)
    assert (gpu_mem.devices, gpu_mem.size, gpu_mem.beside) == (DeviceKind.MEMORY, 1 << 30, "")


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ([{"name": CORE}], "which is no resource of memory"),
        ([{"name": "a.b/c", "devices": "cores", "unit": "30"}], "do not add up to a whole GPU"),
        ([{"name": "a.b/c", "devices": "cores", "unit": "0"}], "from 1 to 100 is needed"),
        ([{"name": "a.b/c", "devices": "cores", "unit": "1GiB"}], "from 1 to 100 is needed"),
        ([{"name": "a.b/c", "devices": "memory", "unit": "100MiB"}], "multiple of 256MiB"),
        ([{"name": "a.b/c", "devices": "memory", "unit": "much"}], "unit"),
        ([{"name": "a.b/c", "devices": "cores", "consumer": "kata"}], "are for containers"),
        ([{"name": "a.b/c", "devices": "cores", "beside": "a.b/c"}], "another resource is needed"),
        ([{"name": "a.b/c", "unit": "10"}], "unit and beside are for cores and memory"),
    ],
)
def test_what_is_unclear_is_refused(resources: list[dict[str, object]], words: str) -> None:
    with pytest.raises(Exception, match=words):
        settings(*resources)
