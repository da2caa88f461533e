"""Many processes that bind and unbind GPUs for claims, killed at random: recovery puts every device back."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS
from tests.unit.claims.test_stress import consistent
from vfioctl import sources
from vfioctl.errors import VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.simulated.files import ledger_of
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import Session

PROCESSES, ROUNDS, INTERRUPTED, SECONDS = 6, 8, 5, 120


def at(file: Path) -> Host:
    return Host(sources.simulated(Session, str(file)))


def drivers(file: Path) -> dict[str, str | None]:
    return {function.address: function.driver for function in at(file).inventory().functions}


def claim_and_release(file: Path, seed: int, log: int) -> None:
    chosen = random.Random(seed)
    while True:
        try:
            request = ClaimRequest(owner=f"user/p{os.getpid()}", gpus=chosen.choice((1, 1, 2)))
            claim = at(file).claims.create(request).claim
            at(file).claims.release(claim.id)
        except VfioctlError:  # another has the GPUs, or an interrupted change waits for recovery
            os.write(log, b"r")
        else:
            os.write(log, b"d")


@pytest.mark.alone
def test_every_device_is_back_after_kills(fast_folder: Path) -> None:
    file = fast_folder / "server.host"
    shutil.copy(HOSTS / "hgx8.host", file)
    before = drivers(file)
    ours, theirs = os.pipe()
    chosen = random.Random(3)

    def worker() -> multiprocessing.Process:
        made = multiprocessing.Process(target=claim_and_release, args=(file, chosen.getrandbits(32), theirs))
        made.start()
        return made

    workers = [worker() for _ in range(PROCESSES)]
    done = recovered = 0
    until = time.monotonic() + SECONDS
    try:
        while (done < ROUNDS or recovered < INTERRUPTED) and time.monotonic() < until:
            time.sleep(chosen.uniform(0.1, 0.5))
            number = in_a_change(file, workers)
            workers[number].kill()
            workers[number].join()
            recovered += len(at(file).recover())
            end_claims_of_the_dead(file, {each.pid for each in workers})
            consistent(ledger_of(file))
            workers[number] = worker()
            done += os.read(ours, 65536).count(b"d")
    finally:
        for each in workers:
            each.kill()
            each.join()
        os.close(ours)
        os.close(theirs)
    assert done >= ROUNDS
    assert recovered >= INTERRUPTED
    at(file).recover()
    end_claims_of_the_dead(file, set())
    assert at(file).claims.claims() == ()
    assert drivers(file) == before


def end_claims_of_the_dead(file: Path, alive: set[int | None]) -> None:
    """Release what killed processes had claimed, as an operator would: recovery came first."""
    for claim in at(file).claims.claims():
        if int(claim.owner.name.removeprefix("p")) not in alive:
            at(file).claims.release(claim.id)


def in_a_change(file: Path, workers: list[multiprocessing.Process]) -> int:
    """Return the number of a worker that changes devices now; of the first if none does."""
    claims = at(file).claims
    changing = {claim.owner.name for claim in claims.claims() if claims.ledger.is_changing(claim.id)}
    return next((number for number, each in enumerate(workers) if f"p{each.pid}" in changing), 0)
