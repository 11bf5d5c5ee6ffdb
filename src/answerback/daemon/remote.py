"""Asking a running daemon, from a command: plain HTTP to the loopback address its file names."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx2

from answerback.daemon.address import DaemonAddress, find_daemon
from answerback.daemon.exits import RemoteError, StartError
from answerback.errors import StoreLockedError
from answerback.store.reader import lock_owner

TIMEOUT = 30.0
"""Seconds a daemon may take to answer; what takes longer says so where it is asked."""


class Remote:
    """A daemon, as a command holds it. Use as a context manager."""

    def __init__(self, address: DaemonAddress) -> None:
        self.address = address
        self._http = httpx2.Client(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.token}"},
            timeout=httpx2.Timeout(TIMEOUT),
            # It is on this machine: a proxy of the environment would only be told the token.
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"<Remote {self.address.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """Return what a path answers.

        Raises:
            RemoteError: the daemon said no.
            StartError: it does not answer.
        """
        return self._read("GET", path, None, TIMEOUT)

    def post(self, path: str, body: dict[str, Any] | None = None, *, timeout: float | None = TIMEOUT) -> Any:
        """Ask for something to be done; errors as in `get`."""
        return self._read("POST", path, body or {}, timeout)

    @contextmanager
    def follow(self, path: str) -> Generator[Iterator[dict[str, Any]]]:
        """Yield the entries of a live path, from when the daemon has confirmed it until it ends; errors as in `get`."""
        try:
            with self._http.stream("GET", path, timeout=httpx2.Timeout(TIMEOUT, read=60.0)) as response:
                if not response.is_success:
                    response.read()
                    raise _refused(response)
                lines = response.iter_lines()
                next(lines, None)
                yield _entries(lines)
        except (httpx2.ConnectError, httpx2.TimeoutException) as error:
            raise self._unreachable() from error

    def _read(self, method: str, path: str, body: dict[str, Any] | None, timeout: float | None) -> Any:
        try:
            response = self._http.request(method, path, json=body, timeout=timeout)
        except httpx2.HTTPError as error:
            raise self._unreachable() from error
        if response.is_success:
            return response.json()
        raise _refused(response)

    def _unreachable(self) -> StartError:
        return StartError(
            f"the daemon of pid {self.address.pid} does not answer at {self.address.url}; it may be ending, try again"
        )


def path_of(kind: str, name: str, verb: str) -> str:
    """Return the path of something asked about a call or a session."""
    return f"/{kind}/{quote(name, safe='')}/{verb}"


def daemon_of(store: Path) -> Remote:
    """Return the daemon of a store.

    Raises:
        StoreLockedError: another process has the store, and that one cannot be asked.
        StartError: no process has it.
    """
    address = find_daemon(store)
    if address is None:
        raise missing_daemon(store)
    return Remote(address)


def missing_daemon(store: Path) -> StartError | StoreLockedError:
    """Return the error for a store without a daemon: nobody has it, or a process that cannot be asked."""
    owner = lock_owner(store)
    if owner is not None:
        return locked(store, owner, "use its Runtime")
    return StartError(f"no daemon runs for {store}; start one with `answerback up APP --db {store}`")


def locked(store: Path, owner: dict[str, Any], instead: str) -> StoreLockedError:
    """Return the error for a store that belongs to a process without an admin."""
    who = f"host {owner.get('host')} pid {owner.get('pid')} since {owner.get('since')}"
    return StoreLockedError(
        f"The store {store} is in use by {who}: only that process can write to it. "
        f"Ask it ({instead}), or stop it and run this command again.",
        path=str(store),
        owner=who,
    )


def _entries(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    try:
        for line in lines:
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
    except httpx2.HTTPError:
        # The daemon is gone; what it had to say was said.
        return


def _refused(response: httpx2.Response) -> RemoteError:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the daemon answered with HTTP {response.status_code}"
    return RemoteError(str(message))
