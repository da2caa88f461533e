"""Reads the current facts of a few functions, for the stale check, verification and rollback. May not write."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.core.change import Fact
from vfioctl.core.reading import ANSWER_TIMEOUT, no_answer
from vfioctl.inventory.model.scope import function_fact
from vfioctl.inventory.probe.function import function_of
from vfioctl.inventory.probe.pci import Facts
from vfioctl.inventory.probe.readers import read_again
from vfioctl.kernel.protocol import Reader, Unanswered


def read_facts(kernel: Reader, addresses: Iterable[str]) -> dict[str, Fact]:
    """Return each function's current fact, without functions that are gone. Raises Stuck if one does not answer."""
    found = {}
    for text, facts in kernel.survey(read_again, addresses, timeout=ANSWER_TIMEOUT):
        if isinstance(facts, Unanswered):
            raise no_answer(text, facts.reason)
        if facts:
            found[text] = _fact(facts)
    return found


def _fact(facts: Facts) -> Fact:
    facts.pop("modalias")
    return function_fact(function_of(facts))
