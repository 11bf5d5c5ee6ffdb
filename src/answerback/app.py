"""App: everything a daemon needs to know of a program, declared in one place: `answerback up bot:app`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from openai import AsyncOpenAI

from answerback.actors.clients import transport_of
from answerback.actors.discovery import Discover
from answerback.actors.settings import read_settings
from answerback.errors import ConfigurationError
from answerback.handlers.registry import Handlers
from answerback.model import OnInterrupted
from answerback.runtime import Runtime
from answerback.store.base import Store
from answerback.store.sqlite import SQLiteStore

DEFAULT_STORE = "answerback.db"
ClientSource: TypeAlias = AsyncOpenAI | Callable[[], AsyncOpenAI]
StoreSource: TypeAlias = Store | str | os.PathLike[str]
DECLARED = frozenset({"client", "handlers", "agent", "store", "on_interrupted", "close_client"})
"""Options of a Runtime that an App has names of its own for, or decides."""


class App:
    """Handlers, and how to run them. Nothing is opened, and no client made, before `runtime()`.

    Args:
        handlers: the functions to answer.
        agent: the `agent` of sessions that are opened without one, as the API takes it.
        discover: sessions to adopt; by default none are.
        client: an official client, which is not closed here, or a function that makes one, which is then closed with
            the runtime. By default `AsyncOpenAI()`, which reads OPENAI_API_KEY and OPENAI_BASE_URL.
        store: a store, or the path of one. By default `answerback.db` in the working directory.
        on_interrupted: what follows a call whose outcome nobody can tell, where its tool does not say. A daemon holds
            it for a person by default.
        options: any other option of `Runtime`.

    Raises:
        ConfigurationError: something of it cannot be used; the text says what.
    """

    def __init__(
        self,
        *,
        handlers: Handlers,
        agent: Mapping[str, Any] | None = None,
        discover: Discover | None = None,
        client: ClientSource | None = None,
        store: StoreSource | None = None,
        on_interrupted: OnInterrupted = "hold",
        **options: Any,
    ) -> None:
        _check(handlers=handlers, agent=agent, discover=discover, client=client, store=store)
        _check_options({**options, "on_interrupted": on_interrupted})
        self.handlers = handlers
        self.agent = agent
        self.discover = discover
        self.store = store
        self.on_interrupted: OnInterrupted = on_interrupted
        self.options: dict[str, Any] = options
        self.client = client

    def __repr__(self) -> str:
        return f"<App {len(self.handlers)} tools, {'adopts' if self.discover else 'adopts nothing'}>"

    def make_client(self) -> AsyncOpenAI:
        """Return the client, made now unless one was given.

        Raises:
            openai.OpenAIError: there is no API key.
            ConfigurationError: the function that makes it returned something else.
        """
        if isinstance(self.client, AsyncOpenAI):
            return self.client
        made = AsyncOpenAI() if self.client is None else self.client()
        transport_of(made)
        return made

    def runtime(self, **changes: Any) -> Runtime:
        """Compose a Runtime, to be entered with `async with`.

        Args:
            changes: options of `Runtime` that differ from what is declared here; `client`, `store` and
                `close_client` among them.

        Raises:
            openai.OpenAIError: there is no API key.
            ConfigurationError: an option cannot be used.
        """
        _check_options(changes, also=DECLARED)
        options: dict[str, Any] = {"on_interrupted": self.on_interrupted, **self.options}
        if self.agent is not None:
            options["agent"] = self.agent
        options.update(changes)
        store = options.pop("store", self.store)
        client = options.pop("client", None)
        if client is None:
            client = self.make_client()
            options.setdefault("close_client", not isinstance(self.client, AsyncOpenAI))
        handlers = options.pop("handlers", self.handlers)
        return Runtime(client, handlers=handlers, store=_store_of(store), **options)


def _store_of(store: StoreSource | None) -> Store:
    if store is None or isinstance(store, str | os.PathLike):
        return SQLiteStore(DEFAULT_STORE if store is None else store)
    return store


def _check(*, handlers: object, agent: object, discover: object, client: object, store: object) -> None:
    """Refuse what cannot be an App, before anything is opened."""
    if not isinstance(handlers, Handlers):
        raise ConfigurationError(f"App(handlers=) must be Handlers, not {_kind(handlers)}")
    if agent is not None and not isinstance(agent, Mapping):
        raise ConfigurationError(f'App(agent=) must be a mapping such as {{"model": "..."}}, not {_kind(agent)}')
    if discover is not None and not isinstance(discover, Discover):
        raise ConfigurationError(f"App(discover=) must be Discover(metadata={{...}}), not {_kind(discover)}")
    if isinstance(client, AsyncOpenAI):
        transport_of(client)
    elif client is not None and not callable(client):
        raise ConfigurationError(
            f"App(client=) must be an openai.AsyncOpenAI, or a function that makes one, not {_kind(client)}"
        )
    # A Protocol cannot be asked for at run time without listing it all; these two tell a store from a mistake.
    if not (store is None or isinstance(store, str | os.PathLike)) and not (
        hasattr(store, "unfinished_sessions") and hasattr(store, "write")
    ):
        raise ConfigurationError(f"App(store=) must be a store, or the path of one, not {_kind(store)}")


def _check_options(options: Mapping[str, Any], *, also: frozenset[str] = frozenset()) -> None:
    known = inspect.signature(Runtime).parameters.keys() - DECLARED | {"on_interrupted"} | also
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ConfigurationError(f"no such option: {', '.join(unknown)}; Runtime has {', '.join(sorted(known))}")
    read_settings(options)


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
