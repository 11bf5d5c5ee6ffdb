"""Cases A03, A04, A09 and A10: every call gets an answer of its own, whatever its neighbours do."""

from __future__ import annotations

import sys
import threading

import anyio
import pytest

from answerback import CallState, Handlers, ToolError
from integration.rig import answering, until_state
from wire_player import PlayedSession, call


async def test_a_misspelt_name_is_answered_with_the_names_there_are_and_nothing_is_guessed() -> None:
    looked: list[str] = []
    handlers = Handlers()

    @handlers.tool(effects="read")
    async def find_parcel(code: str) -> dict[str, object]:
        """Find a parcel."""
        looked.append(code)
        return {"code": code, "at": "Incheon"}

    pending = [
        call("c_typo", "find_parcell", {"code": "P-9"}),
        call("c_case", "Find_Parcel", {"code": "P-9"}),
        call("c_right", "find_parcel", {"code": "P-9"}),
    ]
    async with answering(PlayedSession(pending=pending, tools=["find_parcel"]), handlers) as stage:
        accepted = await stage.answered("c_typo", "c_case", "c_right")
    for name in ("c_typo", "c_case"):
        assert accepted[name].success is False
        assert "find_parcel" in (accepted[name].error or "")
    assert "find_parcell" in (accepted["c_typo"].error or "")
    assert accepted["c_right"].output == '{"code":"P-9","at":"Incheon"}'
    assert looked == ["P-9"]


async def test_at_most_twenty_names_are_offered() -> None:
    handlers = Handlers()
    for number in range(30):

        async def anything() -> None: ...

        handlers.tool(name=f"tool_{number:02}", description="Does nothing.")(anything)
    session = PlayedSession(pending=[call("c_a", "nobody")], tools=["tool_00"])
    async with answering(session, handlers) as stage:
        error = (await stage.answered("c_a"))["c_a"].error or ""
    assert "tool_19" in error
    assert "tool_20" not in error


async def test_an_approval_is_left_for_the_application_and_reported() -> None:
    handlers = Handlers()
    asks = {"type": "mcp_approval_request", "turn_id": "turn_1", "request_id": "apr_1", "name": "delete_everything"}
    session = PlayedSession(pending=[asks, call("c_a", "nobody")], tools=[])
    async with answering(session, handlers) as stage:
        await stage.answered("c_a")
        assert [action["type"] for action in session.pending] == ["mcp_approval_request"]
        (status,) = stage.runtime.status().sessions
        assert status.other_actions == ("mcp_approval_request",)
        assert len(stage.player.posts) == 1


class OddError(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def test_failing_calls_leave_their_siblings_alone_and_have_answers_of_their_own() -> None:
    handlers = Handlers()
    failed = anyio.Event()

    @handlers.tool
    async def empty() -> None:
        """Raise an error without a text."""
        raise LookupError

    @handlers.tool
    async def several() -> None:
        """Raise a group."""
        raise ExceptionGroup("many", [TypeError("t"), OSError(2, "gone")])

    @handlers.tool
    async def odd() -> None:
        """Raise an error that cannot be printed."""
        raise OddError

    @handlers.tool
    async def cancelled_itself() -> None:
        """Raise what a cancelled task raises, without being cancelled."""
        raise anyio.get_cancelled_exc_class().__new__(anyio.get_cancelled_exc_class())

    @handlers.tool
    async def told() -> None:
        """Raise words for the model."""
        raise ToolError("There is no seat left.")

    @handlers.tool
    async def patient() -> str:
        """Outlive them all."""
        await failed.wait()
        return "still here"

    names = ["empty", "several", "odd", "cancelled_itself", "told"]
    pending = [*(call(f"c_{name}", name) for name in names), call("c_patient", "patient")]
    async with answering(PlayedSession(pending=pending), handlers) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in names))
        assert "c_patient" not in accepted
        failed.set()
        accepted = await stage.answered("c_patient")
    assert accepted["c_patient"].output == "still here"
    assert accepted["c_told"].error == "There is no seat left."
    for name in names:
        assert accepted[f"c_{name}"].success is False
        assert (accepted[f"c_{name}"].error or "").strip()
    assert len(stage.player.results()) == 6


async def test_a_handler_that_ends_the_program_ends_only_its_call() -> None:
    handlers = Handlers()

    @handlers.tool
    async def leaves() -> None:
        """Exit on the loop."""
        sys.exit(4)

    @handlers.tool
    def leaves_in_a_thread() -> None:
        """Exit in a thread."""
        raise SystemExit("bye")

    @handlers.tool
    async def interrupts() -> None:
        """Raise what Ctrl-C raises."""
        raise KeyboardInterrupt

    @handlers.tool
    async def stays() -> str:
        """Do its work."""
        return "ok"

    names = ["leaves", "leaves_in_a_thread", "interrupts", "stays"]
    session = PlayedSession(pending=[call(f"c_{name}", name) for name in names])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in names))
        session.require(call("c_later", "stays", turn_id="turn_2"))
        session.publish(session.snapshot_event())
        await stage.answered("c_later")
    assert [accepted[f"c_{name}"].success for name in names] == [False, False, False, True]


async def test_a_blocking_function_holds_up_neither_the_loop_nor_another_one() -> None:
    handlers = Handlers()
    together = threading.Barrier(2, timeout=5)
    go = threading.Event()

    @handlers.tool(effects="read")
    def query(text: str) -> str:
        """Block a thread until both queries are there and the quick call was answered."""
        together.wait()
        assert go.wait(5)
        return text

    @handlers.tool(effects="read")
    async def quick() -> str:
        """Answer at once."""
        return "q"

    pending = [call("c_1", "query", {"text": "a"}), call("c_2", "quick"), call("c_3", "query", {"text": "b"})]
    async with answering(PlayedSession(pending=pending), handlers) as stage:
        accepted = await stage.answered("c_2")
        assert accepted.keys() == {"c_2"}
        go.set()
        accepted = await stage.answered("c_1", "c_3")
    assert (accepted["c_1"].output, accepted["c_3"].output) == ("a", "b")


@pytest.mark.parametrize("parallel", [1, 3])
async def test_no_more_handlers_run_at_once_than_the_runtime_and_the_tool_allow(parallel: int) -> None:
    handlers = Handlers()
    gate, full = anyio.Event(), anyio.Event()
    inside: list[int] = []
    most: list[int] = []

    @handlers.tool(max_concurrency=parallel)
    async def limited(number: int) -> int:
        """Count how many are inside."""
        inside.append(number)
        most.append(len(inside))
        if len(inside) == parallel:
            full.set()
        await gate.wait()
        inside.remove(number)
        return number

    session = PlayedSession(pending=[call(f"c_{n}", "limited", {"number": n}) for n in range(8)])
    async with answering(session, handlers, max_concurrency=5) as stage:
        await until_state(stage, "c_7", CallState.REQUESTED, CallState.STARTED)
        await full.wait()
        status = stage.runtime.status()
        gate.set()
        await stage.answered(*(f"c_{n}" for n in range(8)))
    assert (status.calls, status.running) == (8, parallel)
    assert max(most) == parallel


async def test_the_runtime_bounds_all_its_tools_together() -> None:
    handlers = Handlers()
    gate, full = anyio.Event(), anyio.Event()
    inside: set[str] = set()
    most: list[int] = []

    async def busy(name: str) -> str:
        """Count how many are inside, of whatever tool."""
        inside.add(name)
        most.append(len(inside))
        if len(inside) == 2:
            full.set()
        await gate.wait()
        inside.discard(name)
        return name

    for tool in ("first", "second", "third"):
        handlers.tool(name=tool)(busy)
    session = PlayedSession(pending=[call(f"c_{tool}", tool, {"name": tool}) for tool in ("first", "second", "third")])
    async with answering(session, handlers, max_concurrency=2) as stage:
        await full.wait()
        gate.set()
        await stage.answered("c_first", "c_second", "c_third")
    assert max(most) == 2
