"""What a request must be like: header, key, path, method, JSON, and every key of the body accounted for."""

from __future__ import annotations

from typing import Any

import pytest

from harness.flow import HEADERS, NONE, agent, function, open_session, raw, refusal, strict_harness

BODY = {"agent": agent(), "environment": NONE, "input": "hi"}


@pytest.mark.parametrize("beta", [None, "agents=v2", "agents=v1, agents=v1"])
async def test_the_beta_header_is_wanted_exactly_and_before_the_key(beta: str | None) -> None:
    async with strict_harness(api_key="secret") as (harness, _):
        headers = {} if beta is None else {"openai-beta": beta}
        response = await raw(harness, "GET", "/agents/sessions", headers=headers)
        assert refusal(response) == (400, "invalid_beta", None)
        text = "To access the Agents API, set the 'OpenAI-Beta' header to 'agents=v1'."
        assert response.json()["error"]["message"] == text


async def test_a_repeated_beta_header_is_refused() -> None:
    async with strict_harness() as (harness, _):
        headers = [("openai-beta", "agents=v1")] * 2 + [("authorization", "Bearer x")]
        response = await harness.http.get(f"{harness.base_url}/agents/sessions", headers=headers)
        assert refusal(response)[1] == "invalid_beta"


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic secret"])
async def test_a_wrong_key_is_401_with_a_null_code(authorization: str) -> None:
    async with strict_harness(api_key="secret") as (harness, client):
        headers = {"openai-beta": "agents=v1", "authorization": authorization}
        response = await raw(harness, "GET", "/agents/sessions", headers=headers)
        assert refusal(response) == (401, None, None)
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert (await client.beta.agents.sessions.list()).data == [], "the harness's own client has the key"


async def test_every_response_carries_the_services_headers() -> None:
    async with strict_harness() as (harness, _):
        for path in ("/agents/sessions", "/agents/sessions/none"):
            headers = (await raw(harness, "GET", path)).headers
            assert headers["x-request-id"].startswith("req_")
            assert len(headers["x-request-id"]) == 36
            assert headers["openai-version"] == "2020-10-01"
            assert headers["openai-processing-ms"].isdigit()


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_allow() -> None:
    async with strict_harness() as (harness, _):
        for path in ("/agents/sessions/x", "/nothing", "/agents/sessions/x/humming"):
            assert refusal(await raw(harness, "GET", path))[:2] == (404, "not_found_error")
        response = await raw(harness, "PUT", "/agents/sessions", BODY)
        assert refusal(response)[:2] == (405, "unsupported_operation")
        assert "POST" in response.headers["allow"] or "GET" in response.headers["allow"]


@pytest.mark.parametrize(
    ("path", "feature"),
    [
        ("/agents", "saved agents"),
        ("/agents/agent_1", "saved agents"),
        ("/agents/environments", "environments"),
        ("/agents/automations", "automations"),
        ("/vaults", "vaults"),
        ("/agents/sessions/x/traces", "traces"),
    ],
)
async def test_parts_of_the_api_it_lacks_are_refused_by_name(path: str, feature: str) -> None:
    async with strict_harness() as (harness, _):
        response = await raw(harness, "GET", path)
        assert refusal(response)[:2] == (400, "unsupported_operation")
        assert feature in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'"x"',
        b"\xef\xbb\xbf{}",
        b'{"input": "\\ud800"}',
        b'{"input": "a", "input": "b"}',
        b'{"agent": {"model": "a", "model": "b"}}',
        b'{"n": NaN}',
        b'{"input": "\xff"}',
        b'{"input": "' + b"x" * (4 * 1024 * 1024) + b'"}',
    ],
)
async def test_a_body_that_is_not_strict_json_is_refused_without_a_param(content: bytes) -> None:
    async with strict_harness() as (harness, _):
        response = await raw(harness, "POST", "/agents/sessions", content)
        assert refusal(response) == (400, "invalid_request_error", None)


@pytest.mark.parametrize("content", [b"", b"null"])
async def test_an_empty_body_and_null_are_an_empty_object(content: bytes) -> None:
    async with strict_harness() as (harness, _):
        response = await raw(harness, "POST", "/agents/sessions", content)
        assert refusal(response) == (400, "invalid_request_error", "environment")


async def test_another_content_type_is_refused() -> None:
    async with strict_harness() as (harness, _):
        response = await raw(
            harness, "POST", "/agents/sessions", b"{}", headers={**HEADERS, "content-type": "text/plain"}
        )
        assert response.json()["error"]["message"] == "expected request with Content-Type: application/json"


def with_agent(**changes: Any) -> dict[str, Any]:
    return {**BODY, "agent": {**agent(), **changes}}


def with_tool(**changes: Any) -> dict[str, Any]:
    return with_agent(tools=[{**function(), **changes}])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**BODY, "colour": "red"}, "colour"),
        ({**BODY, "agent": None}, "agent.model"),
        (with_agent(model=None), "agent.model"),
        (with_agent(temperature=1), "agent.temperature"),
        (with_agent(reasoning={"effort": "huge"}), "agent.reasoning.effort"),
        (with_agent(text={"format": {"type": "json_schema"}}), "agent.text.format.schema"),
        (with_agent(tools="all"), "agent.tools"),
        (with_agent(tools=[{"type": "hammer"}]), "agent.tools[0].type"),
        (with_agent(tools=[function(), function()]), "agent.tools[1].name"),
        (with_tool(parameters=None), "agent.tools[0].parameters"),
        (with_tool(parameters={"type": "array"}), "agent.tools[0].parameters"),
        (with_tool(description=None), "agent.tools[0].description"),
        (with_tool(strict=True), "agent.tools[0].strict"),
        ({**BODY, "metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({**BODY, "metadata": {"k": 1}}, "metadata.k"),
        ({**BODY, "metadata": {"k": "v" * 513}}, "metadata.k"),
        ({**BODY, "metadata": {"k" * 65: "v"}}, f"metadata.{'k' * 65}"),
        ({**BODY, "input": None}, "input"),
        ({**BODY, "input": ""}, "input"),
        ({**BODY, "input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]}, "input[0].role"),
        ({**BODY, "environment": None}, "environment"),
        ({**BODY, "environment": {"type": "moon"}}, "environment.type"),
        ({**BODY, "environment": {"type": "none", "size": 1}}, "environment.size"),
        ({**BODY, "stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({**BODY, "stream": "yes"}, "stream"),
    ],
)
async def test_a_creation_that_does_not_fit_is_refused_by_its_path(body: dict[str, Any], param: str) -> None:
    async with strict_harness() as (harness, _):
        response = await raw(harness, "POST", "/agents/sessions", body)
        assert refusal(response) == (400, "invalid_request_error", param)
        assert (harness.log[-1].kind, harness.log[-1].status, harness.log[-1].effect) == ("create", 400, False)


@pytest.mark.parametrize(
    ("body", "feature"),
    [
        ({**BODY, "agent_id": "agent_1"}, "saved agents"),
        ({**BODY, "vault_ids": ["v"]}, "vaults"),
        ({**BODY, "review": "auto_review"}, "auto_review"),
        ({**BODY, "environment": {"type": "openai_hosted"}}, "openai_hosted"),
        ({**BODY, "environment": {"type": "self_hosted", "workspace_directory": "/"}}, "self_hosted"),
        (with_agent(multi_agent={"enabled": True}), "multi_agent"),
        (with_agent(compaction={"async": True}), "compaction"),
        (with_agent(experimental={"time_awareness": True}), "experimental"),
        (with_tool(defer_loading=True), "deferred functions"),
        *((with_agent(tools=[{"type": kind}]), kind.split("_")[0]) for kind in (
            "tool_search", "programmatic_tool_calling", "mcp", "web_search", "computer_use", "automations")),
    ],
)  # fmt: skip
async def test_features_it_lacks_are_refused_by_name_and_never_ignored(body: dict[str, Any], feature: str) -> None:
    async with strict_harness() as (harness, _):
        response = await raw(harness, "POST", "/agents/sessions", body)
        assert refusal(response)[:2] == (400, "unsupported_operation")
        assert feature in response.json()["error"]["message"]


async def test_what_is_switched_off_may_be_said() -> None:
    async with strict_harness() as (_, client):
        tools = ({"type": "programmatic_tool_calling", "enabled": False}, function())
        session = await open_session(client, "hi", *tools, vault_ids=[], review="none")
        assert [tool.type for tool in session.agent.tools] == ["programmatic_tool_calling", "function"]


async def test_defaults_are_filled_in() -> None:
    async with strict_harness() as (_, client):
        session = await open_session(client, "hi", prompt_cache_options={"ttl": "12h"})
        shown = session.to_dict()
        assert shown["agent"]["reasoning"] == {"effort": "medium", "summary": None}
        assert shown["agent"]["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
        assert shown["agent"]["multi_agent"] == {"enabled": False, "max_concurrent_subagents": None}
        assert shown["agent"]["tools"][0]["defer_loading"] is False
        assert (shown["agent"]["service_tier"], shown["metadata"], shown["vault_ids"]) == ("auto", {}, [])
        assert (shown["error"], shown["usage"], shown["prompt_cache_options"]) == (None, None, {"ttl": "12h"})
