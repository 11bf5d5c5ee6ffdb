"""The scripted server itself: what other tests conclude from it must be so."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI

from wire_player import (
    Close,
    Fault,
    Frame,
    Hang,
    PlayedSession,
    Raw,
    Require,
    Reset,
    Snapshot,
    Step,
    Until,
    UntilAnswered,
    WirePlayer,
    call,
    call_added,
    play,
)


async def _post(client: AsyncOpenAI, *events: dict[str, Any], key: str | None = None) -> int:
    headers = {} if key is None else {"Idempotency-Key": key}
    path = "/agents/sessions/sess_1/events"
    try:
        answer: httpx2.Response = await client.post(
            path, body={"events": list(events)}, cast_to=httpx2.Response, options={"headers": headers}
        )
    except APIStatusError as error:
        return error.status_code
    return answer.status_code


def _result(call_id: str, output: str = "ok", *, turn_id: str = "turn_1") -> dict[str, Any]:
    kind = "agent.session.input.tool_result"
    return {"type": kind, "turn_id": turn_id, "call_id": call_id, "success": True, "output": output}


async def _types(player: WirePlayer, *, stop: str | None = None) -> list[str]:
    """Return the types of a new stream's events up to `stop`, or to its end."""
    seen: list[str] = []
    url = f"{player.base_url}/agents/sessions/sess_1/events"
    with anyio.fail_after(5), anyio.CancelScope() as scope:
        async with httpx2.AsyncClient() as http, http.stream("GET", url) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    seen.append(line.removeprefix("event: "))
                if seen and seen[-1] == stop:
                    # A `break` would leave generators for the collector, which trio reports; a cancel unwinds them.
                    scope.cancel()
    return seen


async def _read_into(chunks: list[bytes], player: WirePlayer) -> None:
    url = f"{player.base_url}/agents/sessions/sess_1/events"
    with anyio.fail_after(5):
        async with httpx2.AsyncClient() as http, http.stream("GET", url) as answer:
            async for chunk in answer.aiter_bytes():
                chunks.append(chunk)  # noqa: PERF401 - the chunks before an error count


async def test_the_official_client_reads_a_session_in_strict_mode() -> None:
    async with (
        play(PlayedSession(pending=[call("call_1", "look", {"x": 1})])) as player,
        player.client(strict=True) as client,
    ):
        session = await client.beta.agents.sessions.retrieve("sess_1")
    assert session.status == "requires_action"
    assert [action.to_dict()["call_id"] for action in session.required_actions] == ["call_1"]


async def test_a_result_is_recorded_with_its_exact_bytes_key_and_answer() -> None:
    body = b'{"events": [{"type":"agent.session.input.tool_result", "turn_id":"turn_1","call_id":"call_1",'
    element = body[body.index(b'{"type"') :] + b' "success":true,"output":"\xed\x95\x9c"}'
    async with play(PlayedSession(pending=[call("call_1")])) as player, httpx2.AsyncClient() as http:
        url = f"{player.base_url}/agents/sessions/sess_1/events"
        raw = b'{"events": [' + element + b"]}"
        answer = await http.post(url, content=raw, headers={"Idempotency-Key": "k1"})
    (result,) = player.results("call_1")
    assert (answer.status_code, answer.content) == (202, b"")
    assert (result.raw, result.key, result.status, result.batch) == (element, "k1", 202, 1)
    assert player.posts[0].raw == raw


async def test_results_are_judged_as_the_service_does() -> None:
    session = PlayedSession(pending=[call("call_1"), call("call_2")])
    async with play(session) as player, player.client() as client:
        assert await _post(client, _result("call_9")) == 400
        assert await _post(client, _result("call_1", turn_id="turn_7")) == 400
        assert await _post(client, _result("call_1")) == 202
        assert await _post(client, _result("call_1")) == 202
        assert await _post(client, _result("call_1", "other")) == 409
        assert await _post(client, {"type": "agent.session.input.cancel"}) == 202
        assert await _post(client, _result("call_2")) == 409
    assert [one["status"] for one in session.turns] == ["cancelled"]


async def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    session = PlayedSession(pending=[call("call_1"), call("call_2")])
    async with play(session) as player, player.client() as client:
        assert await _post(client, _result("call_1"), _result("call_9")) == 400
        assert len(session.pending) == 2
        assert await _post(client, _result("call_1"), _result("call_2")) == 202
    assert session.current_status == "idle"
    assert [result.batch for result in player.results()] == [2, 2, 2, 2]


@pytest.mark.parametrize("apply", [False, True])
async def test_a_fault_is_used_once_and_may_have_applied_the_result(apply: bool) -> None:
    session = PlayedSession(pending=[call("call_1")], faults={"call_1": [Fault(status=503, apply=apply)]})
    async with play(session) as player, player.client() as client:
        assert await _post(client, _result("call_1")) == 503
        assert bool(session.pending) is not apply
        assert await _post(client, _result("call_1")) == 202
    assert [result.status for result in player.results("call_1")] == [503, 202]


async def test_a_fault_can_cut_the_connection_without_an_answer() -> None:
    session = PlayedSession(pending=[call("call_1")], faults={"call_1": [Fault(close=True, apply=True)]})
    async with play(session) as player, httpx2.AsyncClient() as http:
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.post(f"{player.base_url}/agents/sessions/sess_1/events", json={"events": [_result("call_1")]})
    assert [result.status for result in player.results()] == [0]
    assert not session.pending


async def test_reads_fail_as_told_and_then_work() -> None:
    faults = {name: [Fault(status=500)] for name in ("session", "items", "turns", "stream")}
    async with play(PlayedSession(faults=faults)) as player, httpx2.AsyncClient() as http:
        base = f"{player.base_url}/agents/sessions/sess_1"
        for path in ("", "/items", "/turns"):
            assert (await http.get(base + path)).status_code == 500
            assert (await http.get(base + path)).status_code == 200
        assert (await http.get(base + "/events")).status_code == 500
    assert player.count("GET", "/items") == 2


async def test_connections_play_their_scripts_in_turn_and_the_last_one_repeats() -> None:
    first: list[Step] = [Snapshot(), call_added("call_1"), Close()]
    session = PlayedSession(
        pending=[call("call_1")], streams=[first, [Frame({"type": "agent.session.later"}), Close()]]
    )
    async with play(session) as player:
        opening = await _types(player)
        assert opening == ["agent.session.requires_action", "agent.session.turn.item.added"]
        assert await _types(player) == ["agent.session.later"]
        assert await _types(player) == ["agent.session.later"]
    assert session.opened == 3


async def test_a_reset_breaks_off_in_the_middle_of_a_frame() -> None:
    session = PlayedSession(streams=[[Snapshot(), Reset({"type": "agent.session.idle"})]])
    received: list[bytes] = []
    async with play(session) as player:
        with pytest.raises(httpx2.RemoteProtocolError):
            await _read_into(received, player)
    assert b"".join(received).count(b"\n\n") == 1
    assert not received[-1].endswith(b"\n\n")


async def test_raw_bytes_arrive_as_written_even_one_by_one() -> None:
    script: list[Step] = [Raw(b"\xef\xbb\xbf"), Raw(lambda s: s.frame(s.snapshot_event()), bytewise=True), Close()]
    async with play(PlayedSession(streams=[script])) as player, httpx2.AsyncClient() as http:
        answer = await http.get(f"{player.base_url}/agents/sessions/sess_1/events")
    assert answer.content.startswith(b"\xef\xbb\xbfevent: agent.session.idle\ndata: {")
    assert answer.content.endswith(b"}\n\n")


async def test_a_stream_follows_the_session_after_its_script() -> None:
    session = PlayedSession(streams=[[Require([call("call_1")]), Snapshot(), UntilAnswered(["call_1"]), Snapshot()]])
    seen: list[str] = []
    async with play(session) as player, player.client() as client, anyio.create_task_group() as tasks:

        async def answer() -> None:
            await player.until(lambda: session.sent == 1)
            assert await _post(client, _result("call_1")) == 202

        tasks.start_soon(answer)
        seen += await _types(player, stop="agent.session.idle")
    assert seen == ["agent.session.requires_action", "agent.session.idle"]


async def test_a_follower_is_told_outputs_and_the_end_of_the_turn() -> None:
    session = PlayedSession(pending=[call("call_1")])
    seen: list[str] = []
    async with play(session) as player, player.client() as client, anyio.create_task_group() as tasks:

        async def answer() -> None:
            await player.until(lambda: bool(session.followers))
            assert await _post(client, _result("call_1")) == 202

        tasks.start_soon(answer)
        seen += await _types(player, stop="agent.session.idle")
    assert seen == ["agent.session.turn.item.added", "agent.session.turn.completed", "agent.session.idle"]


async def test_comments_are_sent_while_a_call_is_awaited() -> None:
    session = PlayedSession(pending=[call("call_1")], streams=[[UntilAnswered(["call_1"], ping=0.01), Close()]])
    received: list[bytes] = []
    async with play(session) as player, anyio.create_task_group() as tasks:

        async def move_on() -> None:
            await player.until(lambda: session.sent > 0)
            session.forget("call_1")

        tasks.start_soon(_read_into, received, player)
        tasks.start_soon(move_on)
    assert received[0].startswith(b": keep-alive\n\n")


async def test_leaving_a_hanging_stream_is_noticed() -> None:
    gate = anyio.Event()
    async with play(PlayedSession(streams=[[Until(gate), Hang()]])) as player, httpx2.AsyncClient() as http:
        session = player.sessions["sess_1"]
        with anyio.fail_after(5):
            async with http.stream("GET", f"{player.base_url}/agents/sessions/sess_1/events"):
                await player.until(lambda: session.live == 1)
                gate.set()
            await player.until(lambda: session.live == 0)


async def test_a_held_answer_waits_and_its_effect_does_not() -> None:
    gate = anyio.Event()
    fault = Fault(status=202, apply=True, hold=gate)
    session = PlayedSession(pending=[call("call_1")], faults={"call_1": [fault]})
    async with play(session) as player, player.client() as client, anyio.create_task_group() as tasks:

        async def answer() -> None:
            assert await _post(client, _result("call_1")) == 202
            assert gate.is_set()

        tasks.start_soon(answer)
        with anyio.fail_after(5):
            await player.until(lambda: not session.pending)
        gate.set()


async def test_a_message_opens_a_turn_that_the_test_may_steer() -> None:
    session = PlayedSession(on_message=lambda s, turn_id: s.require(call("call_1", turn_id=turn_id)))
    message = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    async with play(session) as player, player.client() as client:
        assert await _post(client, {"type": "agent.session.input.message", "input": [message]}) == 202
        assert session.current_status == "requires_action"
        assert await _post(client, _result("call_1")) == 202
        turns = await client.beta.agents.sessions.turns.list("sess_1")
        items = await client.beta.agents.sessions.turns.items.list("turn_1", session_id="sess_1", order="asc")
    assert [(one.id, one.status) for one in turns.data] == [("turn_1", "completed")]
    assert [item.type for item in items.data] == ["message", "function_call_output"]


async def test_created_sessions_are_served_and_listed() -> None:
    async with play() as player, player.client() as client:
        agent: Any = {"model": "scripted"}
        made = await client.beta.agents.sessions.create(
            agent=agent, environment={"type": "none"}, input="hi", metadata={"answerback_key": "k"}
        )
        listed = await client.beta.agents.sessions.list()
    assert {session.id for session in listed.data} == {"sess_1", made.id}
    assert player.sessions[made.id].metadata == {"answerback_key": "k"}
    assert player.created[0]["input"] == "hi"


async def test_the_exception_of_the_block_comes_out_bare() -> None:
    with pytest.raises(KeyError):
        async with play():
            raise KeyError
