"""Threads of the library's calls. They are daemons: one whose call never returns does not keep the program alive."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

Job = Callable[[], None]


def start(name: str, work: Job) -> threading.Thread:
    """Run `work` in a thread of its own, with the options of the command line that runs in this one."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(work), name=f"vfioctl-{name}", daemon=True)
    thread.start()
    return thread


class Latest:
    """A thread that does one job at a time, and of those that wait only the newest of each name."""

    def __init__(self, name: str) -> None:
        self._name, self._jobs = name, dict[str, Job]()
        self._condition, self._thread = threading.Condition(), None
        self._ends = False

    _thread: threading.Thread | None

    def submit(self, name: str, job: Job) -> None:
        """Do this job, instead of one of its name that has not begun."""
        with self._condition:
            self._jobs[name] = job
            if self._thread is None:
                self._thread = start(self._name, self._run)
            self._condition.notify()

    def stop(self) -> None:
        """Begin no other job."""
        with self._condition:
            self._ends = True
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._jobs or self._ends)
                if self._ends:
                    return
                name = next(iter(self._jobs))
                job = self._jobs.pop(name)
            job()
