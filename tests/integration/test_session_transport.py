"""The client is used as it is: its transport, its settings, and what of it is ours to close."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import httpx2
import pytest
from openai import AsyncOpenAI, OpenAI

from answerback import ConfigurationError, Handlers, MemoryStore, Runtime
from answerback.actors.clients import is_default_transport, transport_of
from integration.rig import PATIENCE
from wire_player import PlayedSession, WirePlayer, call, play


def answering_handlers() -> Handlers:
    """Return one tool."""
    handlers = Handlers()

    @handlers.tool(effects="read")
    async def f() -> str:
        """Answer."""
        return "ok"

    return handlers


async def answered(player: WirePlayer, runtime: Runtime) -> None:
    """Let the runtime answer the played session once."""
    async with runtime:
        await runtime.attach("sess_1")
        await player.until(lambda: bool(player.results(status=202)))


async def test_the_default_client_keeps_its_settings_and_stays_open() -> None:
    with anyio.fail_after(PATIENCE):
        async with play(PlayedSession(pending=[call("c_a", "f")])) as player:
            client = AsyncOpenAI(
                api_key="sk-mine", base_url=player.base_url, default_headers={"X-Team": "blue"}, organization="org-1"
            )
            async with client:
                await answered(player, Runtime(client, handlers=answering_handlers(), store=MemoryStore()))
                assert not client.is_closed()
                await client.beta.agents.sessions.retrieve("sess_1")
    for request in player.requests:
        assert request.headers["authorization"] == "Bearer sk-mine"
        assert request.headers["x-team"] == "blue"
        assert request.headers["openai-organization"] == "org-1"
        assert request.headers["openai-beta"] == "agents=v1"


async def test_a_key_that_is_asked_for_each_time_is_asked_for_each_time() -> None:
    asked: list[int] = []

    async def key() -> str:
        asked.append(1)
        return f"sk-{len(asked)}"

    with anyio.fail_after(PATIENCE):
        async with (
            play(PlayedSession(pending=[call("c_a", "f")])) as player,
            AsyncOpenAI(api_key=key, base_url=player.base_url) as client,
        ):
            await answered(player, Runtime(client, handlers=answering_handlers(), store=MemoryStore()))
    assert len(asked) >= 2
    assert len({request.headers["authorization"] for request in player.requests}) >= 2


async def test_a_custom_http_client_is_used_for_everything_said_once_and_left_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "answerback.clients")
    with anyio.fail_after(PATIENCE):
        async with (
            play(PlayedSession(pending=[call("c_a", "f")])) as player,
            httpx2.AsyncClient(headers={"X-Proxy": "yes"}) as http,
        ):
            client = AsyncOpenAI(api_key="sk-test", base_url=player.base_url, http_client=http)
            await answered(player, Runtime(client, handlers=answering_handlers(), store=MemoryStore()))
            assert not http.is_closed
    assert {request.headers.get("x-proxy") for request in player.requests} == {"yes"}
    told = [record for record in caplog.records if "custom http client" in record.message]
    assert len(told) == 1


async def test_streams_may_have_a_client_of_their_own() -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            play(PlayedSession(pending=[call("c_a", "f")])) as player,
            AsyncOpenAI(api_key="sk-post", base_url=player.base_url) as client,
            AsyncOpenAI(api_key="sk-stream", base_url=player.base_url) as streams,
        ):
            runtime = Runtime(client, handlers=answering_handlers(), store=MemoryStore(), stream_client=streams)
            await answered(player, runtime)
            assert not streams.is_closed()
    keys: dict[bool, set[str]] = {True: set(), False: set()}
    for request in player.requests:
        stream = request.path.endswith("/events") and request.method == "GET"
        keys[stream].add(request.headers["authorization"])
    assert keys == {True: {"Bearer sk-stream"}, False: {"Bearer sk-post"}}


async def test_the_transport_of_an_official_client_is_told_from_a_custom_one() -> None:
    async with AsyncOpenAI(api_key="sk-test") as default, httpx2.AsyncClient() as http:
        assert is_default_transport(transport_of(default))
        assert is_default_transport(transport_of(default.copy(max_retries=0)))
        assert not is_default_transport(transport_of(AsyncOpenAI(api_key="sk-test", http_client=http)))


async def test_clients_that_cannot_be_used_are_refused_by_name() -> None:
    with OpenAI(api_key="sk-test") as synchronous, pytest.raises(ConfigurationError, match="AsyncOpenAI"):
        Runtime(synchronous, handlers=Handlers(), store=MemoryStore())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="NoneType"):
        Runtime(None, handlers=Handlers(), store=MemoryStore())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    # A client of the older httpx: openai takes one where it is installed, and then speaks past everything we rely on.
    legacy: Any = type("AsyncClient", (), {"__module__": "httpx"})()
    async with AsyncOpenAI(api_key="sk-test") as client:
        real = client._client
        client._client = legacy
        try:
            with pytest.raises(ConfigurationError, match=r"httpx\.AsyncClient"):
                Runtime(client, handlers=Handlers(), store=MemoryStore())
        finally:
            client._client = real


@pytest.mark.parametrize(
    "options",
    [{"max_concurrency": 0}, {"sync_threads": 0}, {"poll_interval": 0}, {"stream_idle_timeout": -1}],
    ids=lambda options: next(iter(options)),
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    async with AsyncOpenAI(api_key="sk-test") as client:
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            Runtime(client, handlers=Handlers(), store=MemoryStore(), **options)
