"""Control messages first and never refused, events in order and bounded, and no wake-up is ever lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from answerback.actors.mailbox import EVENT_LANE, Mailbox
from answerback.actors.messages import EventArrived, Message, ReadAgain
from answerback.wire.events import Event


def event(n: int) -> EventArrived:
    return EventArrived(Event(type=str(n)))


def control(n: int) -> ReadAgain:
    return ReadAgain(str(n))


async def taken(box: Mailbox, count: int) -> list[Message]:
    with anyio.fail_after(5):
        return [await box.get() for _ in range(count)]


async def test_control_messages_come_first_and_each_lane_keeps_its_order() -> None:
    box = Mailbox()
    await box.put(event(1))
    box.tell(control(1))
    await box.put(event(2))
    box.tell(control(2))
    assert await taken(box, 4) == [control(1), control(2), event(1), event(2)]
    assert len(box) == 0


async def test_a_reader_that_waits_is_woken_by_either_lane() -> None:
    box = Mailbox()
    got: list[Message] = []

    async def read() -> None:
        got.append(await box.get())

    for n in range(4):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            assert len(got) == n
            if n % 2:
                await box.put(event(n))
            else:
                box.tell(control(n))
    assert got == [control(0), event(1), control(2), event(3)]


async def test_a_full_event_lane_holds_its_writer_back_and_no_control_message() -> None:
    box = Mailbox(capacity=2)
    written: list[int] = []

    async def write() -> None:
        for n in range(5):
            await box.put(event(n))
            written.append(n)

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await anyio.wait_all_tasks_blocked()
        assert written == [0, 1]
        for n in range(1000):
            box.tell(control(n))
        assert await taken(box, 1000) == [control(n) for n in range(1000)]
        assert written == [0, 1]
        assert await taken(box, 1) == [event(0)]
        await anyio.wait_all_tasks_blocked()
        assert written == [0, 1, 2]
        assert await taken(box, 4) == [event(n) for n in range(1, 5)]


async def test_several_writers_all_get_their_turn_and_keep_their_own_order() -> None:
    box = Mailbox(capacity=1)
    messages: list[Message] = []

    async def write(start: int) -> None:
        for n in range(20):
            await box.put(event(start + n))

    async with anyio.create_task_group() as group:
        for writer in range(5):
            group.start_soon(write, writer * 100)
        messages += await taken(box, 100)
    got = [int(one.event.type) for one in messages if isinstance(one, EventArrived)]
    assert sorted(got) == [start * 100 + n for start in range(5) for n in range(20)]
    for writer in range(5):
        own = [n for n in got if n // 100 == writer]
        assert own == sorted(own)


async def test_the_lane_never_holds_more_than_its_capacity() -> None:
    box = Mailbox(capacity=3)
    async with anyio.create_task_group() as group:
        for n in range(10):
            group.start_soon(box.put, event(n))
        for _ in range(10):
            await anyio.wait_all_tasks_blocked()
            assert len(box) <= 3
            await taken(box, 1)


async def _cancelled_while_waiting(wait: Callable[[], Awaitable[object]]) -> None:
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await wait()

        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


async def test_a_cancelled_writer_leaves_nothing_and_takes_no_wake_up_along() -> None:
    box = Mailbox(capacity=1)
    await box.put(event(0))
    async with anyio.create_task_group() as group:
        await _cancelled_while_waiting(lambda: box.put(event(99)))
        group.start_soon(box.put, event(1))
        await anyio.wait_all_tasks_blocked()
        assert await taken(box, 2) == [event(0), event(1)]
    assert len(box) == 0


async def test_a_writer_cancelled_in_the_moment_of_its_wake_up_does_not_strand_the_next() -> None:
    box = Mailbox(capacity=1)
    await box.put(event(0))
    got: list[Message] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(box.put, event(99))
                await anyio.wait_all_tasks_blocked()
                group.start_soon(box.put, event(1))
                await anyio.wait_all_tasks_blocked()
                assert await box.get() == event(0)
                # Both writers have been woken and neither has run yet; the first may still write, or not.
                doomed.cancel_scope.cancel()
            while event(1) not in got:
                got.append(await box.get())
    assert got in ([event(1)], [event(99), event(1)])


async def test_a_cancelled_reader_loses_no_message_and_no_wake_up() -> None:
    box = Mailbox()
    await _cancelled_while_waiting(box.get)
    box.tell(control(1))
    assert await taken(box, 1) == [control(1)]
    await _cancelled_while_waiting(box.get)
    await box.put(event(1))
    assert await taken(box, 1) == [event(1)]


async def test_a_reader_cancelled_in_the_moment_of_its_wake_up_leaves_the_message() -> None:
    box = Mailbox()
    got: list[Message] = []

    async def read() -> None:
        got.append(await box.get())

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        box.tell(control(1))
        group.cancel_scope.cancel()
    if len(box):
        got += await taken(box, 1)
    assert got == [control(1)]


async def test_a_burst_of_hints_can_be_taken_at_once() -> None:
    box = Mailbox()
    await box.put(event(1))
    for n in range(3):
        box.tell(control(n))
    assert box.drain_control() == [control(0), control(1), control(2)]
    assert box.drain_control() == []
    assert await taken(box, 1) == [event(1)]


async def test_forgetting_everything_lets_waiting_writers_in() -> None:
    box = Mailbox(capacity=1)
    await box.put(event(0))
    box.tell(control(0))
    async with anyio.create_task_group() as group:
        group.start_soon(box.put, event(1))
        await anyio.wait_all_tasks_blocked()
        box.clear()
        assert await taken(box, 1) == [event(1)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_mailbox_says_what_waits_in_it(anyio_backend: str) -> None:
    box = Mailbox()
    box.tell(control(1))
    await box.put(event(1))
    await box.put(event(2))
    assert repr(box) == "<Mailbox 1 control, 2 events>"
    assert (len(box), box.capacity) == (3, EVENT_LANE)
