"""App: what a program declares for a daemon, refused at once where it cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from openai import AsyncOpenAI, OpenAI, OpenAIError

from answerback import App, ConfigurationError, Discover, Handlers, MemoryStore, SQLiteStore
from answerback.store.base import Store
from answerback.testing import Script, call, rule, run_harness, say
from integration.rig import PATIENCE


def ping_handlers() -> Handlers:
    handlers = Handlers()

    @handlers.tool
    async def ping() -> str:
        """Answer."""
        return "pong"

    return handlers


async def test_an_app_composes_a_runtime_that_opens_sessions_with_its_agent() -> None:
    script = Script(rule("ping", call("ping"), say("done")))
    with anyio.fail_after(PATIENCE):
        async with run_harness(script) as harness:
            app = App(
                handlers=ping_handlers(),
                agent={"model": "m"},
                client=harness.client,
                store=MemoryStore(),
                discover=Discover(metadata={"app": "acme"}),
                poll_interval=5,
            )
            async with app.runtime() as runtime:
                session = await runtime.open("k", input="ping")
                assert (await session.wait()).output_text == "done"
                assert (runtime._settings.calls.on_interrupted, runtime._settings.actors.poll_interval) == ("hold", 5)
            # The client is the application's; it goes on.
            assert (await harness.client.beta.agents.sessions.retrieve(session.id)).status == "idle"
            assert app.discover == Discover(metadata={"app": "acme"})


async def test_a_client_made_for_the_app_is_closed_with_its_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AsyncOpenAI] = []

    def make() -> AsyncOpenAI:
        made.append(AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1"))
        return made[-1]

    app = App(handlers=ping_handlers(), client=make, store=MemoryStore())
    assert made == []
    for number in (1, 2):
        async with app.runtime() as runtime:
            assert len(made) == number
            assert runtime.status().passivated == 0
        assert made[-1].is_closed()

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    default = App(handlers=ping_handlers(), store=MemoryStore()).make_client()
    assert str(default.base_url) == "http://127.0.0.1:9/v1/"
    await default.close()


def test_an_app_without_a_key_says_so_when_it_is_run_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    app = App(handlers=ping_handlers(), store=MemoryStore())
    with pytest.raises(OpenAIError):
        app.runtime()


async def test_a_store_is_given_as_a_path_or_an_object_and_may_be_changed_when_composing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client = AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1")

    def path_of(store: Store) -> Path:
        assert isinstance(store, SQLiteStore)
        return store.path

    assert path_of(App(handlers=ping_handlers(), client=client).runtime().store).name == "answerback.db"
    app = App(handlers=ping_handlers(), client=client, store=tmp_path / "a.db")
    assert path_of(app.runtime().store) == tmp_path / "a.db"
    assert path_of(App(handlers=ping_handlers(), client=client, store="b.db").runtime().store).name == "b.db"
    assert path_of(app.runtime(store="c.db", drain_timeout=1.0).store).name == "c.db"
    own = MemoryStore()
    assert app.runtime(store=own).store is own
    await client.close()


async def test_the_second_of_two_lives_in_one_process_finds_what_the_first_left(tmp_path: Path) -> None:
    script = Script(rule("ping", call("ping"), say("done")), rule(say("Hello.")))
    with anyio.fail_after(PATIENCE):
        async with run_harness(script) as harness:
            app = App(handlers=ping_handlers(), agent={"model": "m"}, client=harness.client, store=tmp_path / "a.db")
            ids: set[str] = set()
            for number in (1, 2):
                async with app.runtime() as runtime:
                    session = await runtime.open("k", input="hello")
                    ids.add(session.id)
                    assert (await session.run("ping", key=f"m{number}")).output_text == "done"
            assert len(ids) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"handlers": None}, "handlers="),
        ({"handlers": Handlers}, "the class Handlers"),
        ({"agent": "gpt"}, "agent="),
        ({"discover": {"app": "acme"}}, "Discover"),
        ({"client": "sk-123"}, "client="),
        ({"client": OpenAI(api_key="k")}, "AsyncOpenAI"),
        ({"store": 7}, "store="),
        ({"store": Handlers()}, "store="),
        ({"on_interrupted": "guess"}, "on_interrupted"),
        ({"max_concurency": 3}, "max_concurency"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": "3"}, "max_concurrency"),
        ({"poll_interval": 0}, "poll_interval"),
        ({"passivate_after": -1}, "passivate_after"),
        ({"unhandled": "maybe"}, "unhandled"),
        ({"max_streams": -1}, "max_streams"),
        ({"close_client": True}, "close_client"),
    ],
)
def test_what_cannot_work_is_refused_by_name_when_it_is_declared(options: dict[str, Any], says: str) -> None:
    make: Any = App
    with pytest.raises(ConfigurationError, match=says):
        make(**{"handlers": ping_handlers(), **options})


def test_options_that_are_changed_when_composing_are_checked_too() -> None:
    app = App(handlers=ping_handlers(), client=AsyncOpenAI(api_key="k"), store=MemoryStore())
    with pytest.raises(ConfigurationError, match="drain_timout"):
        app.runtime(drain_timout=1.0)
    with pytest.raises(ConfigurationError, match="poll_interval"):
        app.runtime(poll_interval=-1.0)


def test_a_client_of_the_wrong_kind_is_refused_when_it_is_made() -> None:
    def synchronous() -> Any:
        return OpenAI(api_key="k", http_client=httpx2.Client())

    app = App(handlers=ping_handlers(), client=synchronous, store=MemoryStore())
    with pytest.raises(ConfigurationError, match="synchronous"):
        app.runtime()
