"""The thread in which sockets are read and written; all others let it work for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own. Its methods are for other threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="grpc", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.run(_cancel_others())
        if loop := self._loop:
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns. Raises what it raises; RuntimeError if the loop does not run."""
        if self._loop is None:
            work.close()
            raise RuntimeError("the event loop does not run")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def soon(self, work: Callable[[], object]) -> None:
        """Call a function in the loop's thread; never if it does not run."""
        if loop := self._loop:
            with suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(work)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
