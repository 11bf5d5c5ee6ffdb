"""What is shipped for users' tests: the harness in a thread, and the fixture on top of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import httpx2
import pytest
from openai import OpenAI

from answerback.pytest_plugin import agents_api
from answerback.testing import HarnessThread, Script, rule, run_harness_thread, say, sleep

__all__ = ["agents_api"]  # the fixture, also where the plugin is not installed


def _ask(client: OpenAI, text: str) -> str:
    stream = client.beta.agents.sessions.create(
        agent={"model": "any"}, environment={"type": "none"}, input=text, stream=True
    )
    with stream as events:
        return "".join(event.delta for event in events if event.type == "agent.session.turn.output_text.delta")


def test_a_synchronous_client_with_no_settings_talks_to_the_fixture(agents_api: HarnessThread) -> None:
    agents_api.set_script(Script(rule("hi", say("Hello."))))
    with OpenAI() as client:
        assert _ask(client, "Hi") == "Hello."
    assert [entry.kind for entry in agents_api.log] == ["create"]


def test_the_fixture_puts_the_environment_back(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.MonkeyPatch.context() as inner:
        function: Callable[..., Iterator[HarnessThread]] = getattr(agents_api, "__wrapped__")  # noqa: B009 - no type knows it
        fixture = function(inner)
        served = next(fixture)
        assert os.environ["OPENAI_BASE_URL"] == served.base_url
        assert next(fixture, None) is None
    assert "OPENAI_BASE_URL" not in os.environ
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(served.base_url)


def test_faults_are_added_from_any_thread() -> None:
    with run_harness_thread() as harness:
        harness.add_faults({"on": "create", "do": {"status": 503}})
        client = OpenAI(base_url=harness.base_url, api_key=harness.api_key, max_retries=0)
        with client, pytest.raises(Exception, match="503"):
            _ask(client, "Hi")


def test_time_is_moved_from_any_thread() -> None:
    with run_harness_thread(Script(rule(sleep(3600), say("Good morning.")))) as harness:
        client = OpenAI(base_url=harness.base_url, api_key=harness.api_key)
        with client:
            stream = client.beta.agents.sessions.create(
                agent={"model": "any"}, environment={"type": "none"}, input="Sleep well", stream=True
            )
            said = ""
            with stream as events:
                for event in events:
                    if event.type == "agent.session.turn.created":
                        harness.advance(3600)
                    if event.type == "agent.session.turn.output_text.delta":
                        said += event.delta
    assert said == "Good morning."
