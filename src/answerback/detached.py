"""A task that no caller's cancel scope contains: it ends by itself, by one `cancel()`, or with its event loop.

A runtime and a handler's body need one: a cancelled caller must not tear an effect from its outcome, and a body that
swallows cancellation must not hold whoever waits for it. anyio has no such task on purpose, so each backend's own is
used here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    import asyncio

    import trio


class DetachedTask:
    """One detached task.

    Attributes:
        error: what the body raised, cancellation excepted; None while it runs or when it ended well.
        cancelled: whether it ended by a cancellation.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.cancelled = False
        self._done = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        self._scope: trio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<DetachedTask {self.name} {'done' if self.done else 'running'}>"

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    async def wait(self) -> None:
        """Wait until it has ended; cancelling the wait does not touch it."""
        await self._done.wait()

    def cancel(self) -> None:
        """Cancel it. On asyncio once, as a native cancel: anyio would repeat it for as long as it is swallowed."""
        if self._task is not None:
            self._task.cancel()
        elif self._scope is not None:
            self._scope.cancel()

    async def _run(self, body: Callable[[], Awaitable[None]]) -> None:
        cancelled = anyio.get_cancelled_exc_class()
        try:
            await body()
        except cancelled:
            self.cancelled = True
            # trio must see its own cancellation again; asyncio has nobody left to tell.
            if self._task is None:
                raise
        except BaseException as error:  # noqa: BLE001 - there is no caller: whoever waits reads `error`
            self.error = error
        finally:
            self._done.set()

    def _start_asyncio(self, body: Callable[[], Awaitable[None]], context: Context) -> None:
        import asyncio

        # The reference here, held by whoever holds this object, and the loop's own weak one would not do together
        # when nobody holds it: the callback closes the circle until the task ends.
        self._task = asyncio.get_running_loop().create_task(self._run(body), name=self.name, context=context)
        _alive.add(self)
        self._task.add_done_callback(lambda _: _alive.discard(self))

    def _start_trio(self, body: Callable[[], Awaitable[None]], context: Context) -> None:
        import trio

        scope = self._scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await self._run(body)

        trio.lowlevel.spawn_system_task(run, name=self.name, context=context)


_alive: set[DetachedTask] = set()
"""The one piece of module state: asyncio keeps weak references to tasks only, and a vanished task loses an effect."""


def start_detached(body: Callable[[], Awaitable[None]], *, name: str, context: Context | None = None) -> DetachedTask:
    """Start `body` in a detached task of the running event loop and return at once.

    Args:
        body: what to run.
        name: shows in debuggers and in task dumps.
        context: context variables to run it in; the caller's are copied when it is None.
    """
    task = DetachedTask(name)
    context = context if context is not None else copy_context()
    if type(current_token().native_token).__module__.startswith("trio"):
        task._start_trio(body, context)  # noqa: SLF001 - two halves of one thing
    else:
        task._start_asyncio(body, context)  # noqa: SLF001 - as above
    return task
