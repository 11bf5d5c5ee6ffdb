"""A chat platform on loopback, as far as a bot can see one: what was posted, every edit of it, trouble on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from example_run import PATIENCE


@dataclass(frozen=True)
class Answer:
    """What the platform says to a request."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class Posted:
    """One message of the bot: everything it ever showed, the buttons it has now."""

    id: str
    chat: str
    shown: list[str]
    buttons: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def text(self) -> str:
        return self.shown[-1]


class FakePlatform:
    """What the fakes have in common; a fake answers requests in `answer`."""

    def __init__(self) -> None:
        self.url = ""
        self.messages: list[Posted] = []
        self.requests: list[str] = []
        self._changed = threading.Condition()
        self._trouble: list[tuple[str, Answer]] = []

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Answer one request; called with the condition held."""
        raise NotImplementedError

    def trouble(self, method: str, answer: Answer, times: int = 1) -> None:
        """Let the next requests of a method fail."""
        self._trouble += [(method, answer)] * times

    def forget_messages(self) -> None:
        """Delete everything the bot posted, as an admin may."""
        with self._changed:
            self.messages.clear()

    def until(self, predicate: Callable[[], Any]) -> None:
        """Return once the predicate holds; it is asked again after every request."""
        with self._changed:
            assert self._changed.wait_for(predicate, PATIENCE), self.messages

    def until_shown(self, text: str, number: int = 0) -> Posted:
        """Return a message once its newest text contains this."""
        self.until(lambda: len(self.messages) > number and text in self.messages[number].text)
        return self.messages[number]

    def until_asked(self, number: int = 0) -> dict[str, str]:
        """Return the buttons of a message once it has some, label to value."""
        self.until(lambda: len(self.messages) > number and self.messages[number].buttons)
        return self.messages[number].buttons

    def serve(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Note a request and answer it."""
        method = path.rpartition("/")[2]
        with self._changed:
            self.requests.append(method)
            planned = next((one for one in self._trouble if one[0] == method), None)
            if planned is not None:
                self._trouble.remove(planned)
                answer = planned[1]
            else:
                answer = self.answer(path, body, headers)
            self._changed.notify_all()
        return answer

    def find(self, chat: str, identity: str) -> Posted | None:
        """Return a message."""
        return next((one for one in self.messages if (one.chat, one.id) == (chat, identity)), None)


@contextmanager
def serving(platform: FakePlatform) -> Generator[None]:
    """Serve a fake on a free port for the length of a block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = platform.serve(self.path.partition("?")[0], body, headers)
            payload = msgspec.json.encode(answer.body)
            try:
                self.send_response(answer.status)
                for name, value in {"content-type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)
            except ConnectionError:
                self.close_connection = True  # the bot was killed

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base's
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a killed bot leaves broken connections

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        platform.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
