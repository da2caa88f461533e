"""The facts of functions that plans rely on (identity, group, driver), read before and after changes. May not write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from vfioctl.core.change import Fact
from vfioctl.core.reading import ANSWER_TIMEOUT, no_answer
from vfioctl.inventory.model.scope import FUNCTION, function_fact
from vfioctl.inventory.probe.inventory import function_of
from vfioctl.inventory.probe.pci import read_again
from vfioctl.kernel.lenient import physical
from vfioctl.kernel.protocol import Reader, Unanswered


def read_facts(kernel: Reader, addresses: Iterable[str]) -> dict[str, Fact]:
    """Return each function's current fact, without functions that are gone. Raises Stuck if one does not answer."""
    functions = {}
    for text, facts in kernel.survey(read_again, addresses, timeout=ANSWER_TIMEOUT):
        if isinstance(facts, Unanswered):
            raise no_answer(text, facts.reason)
        if facts:
            del facts["modalias"]
            functions[text] = function_fact(function_of(facts))
    return functions


class FunctionFacts:
    """Reads and compares facts of the kind `function`."""

    kind: ClassVar[str] = FUNCTION

    def read(self, kernel: Reader, facts: Sequence[Fact]) -> Mapping[str, Fact]:
        return read_facts(kernel, [fact.subject for fact in facts])

    def holds(self, fact: Fact, now: Fact | None) -> bool:
        return fact == now

    def relatives(self, kernel: Reader, fact: Fact) -> Iterable[str]:
        """Return the PF of a VF: a change of the PF also changes its VFs."""
        return (physical(kernel, fact.subject),)

    def describe(self, fact: Fact) -> Sequence[str]:
        """Return the columns `0000:41:00.0`, `10de:2330`, `group 7`, `vfio-pci, override vfio-pci`."""
        values = fact.values
        group = "none" if values["iommu_group"] is None else values["iommu_group"]
        override = f", override {values['driver_override']}" if values["driver_override"] else ""
        driver = values["driver"] or "no driver"
        return fact.subject, str(values["identity"])[:9], f"group {group}", f"{driver}{override}"
