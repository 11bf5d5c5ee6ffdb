"""A scripted player of the Agents API's wire, for tests of one client against one wished-for server.

It speaks real HTTP on a loopback port, on asyncio and on trio. Unlike the harness, which behaves, it does what the test
says: byte by byte, in any order, wrong where wanted.

    session = PlayedSession(
        pending=[call("call_1", "refund", {"order": 7})],
        streams=[[Snapshot(), Reset()], [Snapshot()]],          # the first connection breaks, later ones behave
        faults={"call_1": [Fault(status=503, apply=True)]},     # did it, and said it did not
    )
    async with play(session) as player, player.client() as client:
        ...                                                     # drive the code under test with this client
        await player.until(lambda: len(player.results("call_1")) == 2)
        first, second = player.results("call_1")
        assert first.raw == second.raw and first.key == second.key

What a test can do while it runs: `session.require(call(...))`, `session.require_again(...)`, `session.forget(id)`,
`session.finish(text=...)`, `session.publish(event)`, add to `session.faults`, read `session.live` (open streams),
`session.opened` and `session.sent` (pieces written on them). What it can read: `player.results()` (every `tool_result`, exact bytes, key, time, status),
`player.posts` (every POST of events), `player.requests` (every request). `player.until(predicate)` waits without
polling; bound it with `anyio.fail_after(5)`.

Served: create and list sessions; one session, its events (stream and POST), items, turns, one turn, one turn's items.
Normal answers: 202 for a listed call and for an identical repeat, 409 for a different one, 400 `Unknown pending tool
call` otherwise; a batch is taken whole or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from openai import AsyncOpenAI

from wire_records import Post, Request, Result, results_of
from wire_session import (
    JSON,
    Close,
    Fault,
    Forget,
    Frame,
    Hang,
    Pause,
    PlayedSession,
    Raw,
    Require,
    Reset,
    Signal,
    Snapshot,
    Step,
    Until,
    UntilAnswered,
    call,
    call_added,
    encode_frame,
    turn,
)

__all__ = [
    "JSON", "Close", "Fault", "Forget", "Frame", "Hang", "Pause", "PlayedSession", "Post", "Raw", "Request", "Require",
    "Reset", "Result", "Signal", "Snapshot", "Step", "Until", "UntilAnswered", "WirePlayer", "call", "call_added",
    "encode_frame", "play", "turn",
]  # fmt: skip

_HEAD_LIMIT = 1 << 16


class _Batch(msgspec.Struct):
    events: list[msgspec.Raw]


class _Answer(msgspec.Struct, frozen=True):
    status: int
    body: JSON | None = None
    headers: dict[str, str] = {}
    close: bool = False
    hold: anyio.Event | None = None


class WirePlayer:
    """The server; made by `play`. It keeps what it was sent and serves its sessions until the block ends."""

    def __init__(self, sessions: Sequence[PlayedSession], *, port: int) -> None:
        self.sessions = {session.id: session for session in sessions}
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.requests: list[Request] = []
        self.posts: list[Post] = []
        self.created: list[JSON] = []
        self._signal = Signal()
        self._started = anyio.current_time()
        for session in sessions:
            session.signal = self._signal

    def __repr__(self) -> str:
        return f"<WirePlayer {self.base_url} {len(self.requests)} requests, {len(self.posts)} posts>"

    def client(self, *, strict: bool = False) -> AsyncOpenAI:
        """Return an official client of this server, without retries of its own; the caller closes it."""
        return AsyncOpenAI(api_key="sk-test", base_url=self.base_url, max_retries=0, _strict_response_validation=strict)

    def results(self, call_id: str | None = None, *, status: int | None = None) -> list[Result]:
        """Return the results that were posted, in order; of one call, or with one answer, if asked."""
        return [
            result
            for post in self.posts
            for result in results_of(post)
            if call_id in {None, result.call_id} and status in {None, result.status}
        ]

    def count(self, method: str, ending: str) -> int:
        """Return how many requests had this method and a path with this ending."""
        return sum(1 for one in self.requests if one.method == method and one.path.endswith(ending))

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Return once the predicate holds; it is asked again after every change the player sees."""
        await self._signal.until(predicate)

    async def converse(self, stream: ByteStream) -> None:
        """Serve one connection until either side ends it."""
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            try:
                while await self._exchange(reader, stream):
                    pass
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the client left; what it sent so far is recorded

    async def _exchange(self, reader: BufferedByteReceiveStream, stream: ByteStream) -> bool:
        request = await self._read(reader)
        self.requests.append(request)
        self._signal.changed()
        parts = request.path.removeprefix("/v1/agents/sessions").strip("/").split("/")
        session = self.sessions.get(parts[0])
        if session is not None and parts[1:] == ["events"] and request.method == "GET":
            fault = session.take_fault("stream")
            if fault is None:
                await self._stream(session, reader, stream)
                return False
            return await _send(stream, _refusal(fault))
        return await _send(stream, self._route(request, parts, session))

    async def _read(self, reader: BufferedByteReceiveStream) -> Request:
        lines = (await reader.receive_until(b"\r\n\r\n", _HEAD_LIMIT)).decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = int(headers.get("content-length", "0"))
        body = await reader.receive_exactly(length) if length else b""
        path, _, query = target.partition("?")
        return Request(anyio.current_time() - self._started, method, path, query, headers, body)

    def _route(self, request: Request, parts: list[str], session: PlayedSession | None) -> _Answer:
        if parts == [""]:
            return self._create(request) if request.method == "POST" else self._list_sessions()
        if session is None:
            return _error(404, "No such session.", "not_found_error")
        match request.method, parts[1:]:
            case "POST", ["events"]:
                return self._post(session, request)
            case "GET", []:
                return _refused(session, "session") or _Answer(200, session.body())
            case "GET", ["items"]:
                return _refused(session, "items") or _page(request, session.items)
            case "GET", ["turns"]:
                return _refused(session, "turns") or _page(request, session.turns)
            case "GET", ["turns", turn_id]:
                found = [one for one in session.turns if one["id"] == turn_id]
                return _Answer(200, found[0]) if found else _error(404, "No such turn.", "not_found_error")
            case "GET", ["turns", turn_id, "items"]:
                return _refused(session, "items") or _page(
                    request, [i for i in session.items if i["turn_id"] == turn_id]
                )
            case _:
                return _error(405, "Not played.", "unsupported_operation")

    def _create(self, request: Request) -> _Answer:
        body: JSON = msgspec.json.decode(request.body)
        session = PlayedSession(session_id=f"sess_{len(self.sessions) + 1}")
        session.metadata = body.get("metadata") or {}
        session.signal = self._signal
        self.sessions[session.id] = session
        self.created.append(body)
        return _Answer(201, session.body("in_progress" if body.get("input") else None))

    def _list_sessions(self) -> _Answer:
        listed = [session.body() for session in self.sessions.values()]
        return _Answer(200, {"object": "list", "data": listed, "first_id": None, "last_id": None, "has_more": False})

    def _post(self, session: PlayedSession, request: Request) -> _Answer:
        elements = tuple(bytes(raw) for raw in msgspec.json.decode(request.body, type=_Batch).events)
        events: tuple[JSON, ...] = tuple(msgspec.json.decode(element) for element in elements)
        status, reason = session.judge(events)
        names = (str(event.get("call_id") or event["type"].rsplit(".", 1)[-1]) for event in events)
        fault = session.take_fault(*names)
        answer = _Answer(202) if status == 202 else _error(status, reason)
        answer = answer if fault is None else _refusal(fault)
        key = request.headers.get("idempotency-key")
        shown = 0 if answer.close else answer.status
        self.posts.append(Post(request.at, session.id, key, shown, request.body, elements, events))
        if status == 202 and (fault is None or fault.apply):
            session.apply(events)
        self._signal.changed()
        return answer

    async def _stream(self, session: PlayedSession, reader: BufferedByteReceiveStream, stream: ByteStream) -> None:
        script = session.streams[min(session.opened, len(session.streams) - 1)]
        session.opened += 1
        session.live += 1
        self._signal.changed()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        try:
            await stream.send(head)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_leave, reader, tasks.cancel_scope)
                # The client may leave in the middle of a frame; inside the group, or it would come out in a group.
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await _Connection(session, stream).play(script)
                tasks.cancel_scope.cancel()
        finally:
            session.live -= 1
            self._signal.changed()


class _Connection:
    """One open event stream: it plays its script, then follows the session."""

    def __init__(self, session: PlayedSession, stream: ByteStream) -> None:
        self._session = session
        self._stream = stream

    async def play(self, script: Sequence[Step]) -> None:
        for step in script:
            if not await self._step(step):
                return
        await self._follow()

    async def _step(self, step: Step) -> bool:
        """Play one step; return whether the script goes on."""
        session = self._session
        match step:
            case Frame(event):
                await self._send(session.frame(event))
            case Snapshot(status):
                await self._send(session.frame(session.snapshot_event(status)))
            case Raw(data, bytewise):
                content = data if isinstance(data, bytes) else data(session)
                for piece in [bytes((byte,)) for byte in content] if bytewise else [content]:
                    await self._send(piece)
            case Require(actions):
                session.require(*actions)
            case Forget(call_ids):
                session.forget(*call_ids)
            case Pause(seconds):
                await anyio.sleep(seconds)
            case Until(event):
                await event.wait()
            case UntilAnswered(call_ids, ping):
                await self._until_answered(set(call_ids), ping)
            case Hang():
                await anyio.sleep_forever()
            case Close():
                await self._stream.send(b"0\r\n\r\n")
                return False
            case Reset(event):
                block = b"" if event is None else session.frame(event)
                await self._send(block[: len(block) // 2])
                return False
            case _:
                raise TypeError(f"not a step of a script: {step!r}")
        return True

    async def _until_answered(self, call_ids: set[str], ping: float | None) -> None:
        session = self._session

        def answered() -> bool:
            return not call_ids & {action.get("call_id") for action in session.pending}

        while not answered():
            with anyio.move_on_after(ping):
                await session.signal.until(answered)
            if ping is not None and not answered():
                await self._send(b": keep-alive\n\n")

    async def _follow(self) -> None:
        send, receive = anyio.create_memory_object_stream[bytes](float("inf"))
        follow = send.send_nowait
        if not self._session.pending:
            follow(self._session.frame(self._session.snapshot_event()))
        self._session.followers.append(follow)
        self._session.signal.changed()
        try:
            with send, receive:
                async for block in receive:
                    await self._send(block)
        finally:
            self._session.followers.remove(follow)

    async def _send(self, data: bytes) -> None:
        if data:
            await self._stream.send(b"%x\r\n%b\r\n" % (len(data), data))
            self._session.sent += 1
            self._session.signal.changed()


async def _leave(reader: BufferedByteReceiveStream, scope: anyio.CancelScope) -> None:
    """End the stream's scope when the client goes away; it has nothing more to say."""
    try:
        while True:
            await reader.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        scope.cancel()


async def _send(stream: ByteStream, answer: _Answer) -> bool:
    """Write one answer; return whether the connection stays."""
    if answer.hold is not None:
        await answer.hold.wait()
    if answer.close:
        return False
    body = b"" if answer.body is None else msgspec.json.encode(answer.body)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    await stream.send(f"HTTP/1.1 {answer.status} Played\r\n{lines}\r\n".encode("latin-1") + body)
    return True


def _refused(session: PlayedSession, name: str) -> _Answer | None:
    fault = session.take_fault(name)
    return None if fault is None else _refusal(fault)


def _refusal(fault: Fault) -> _Answer:
    plain = None if fault.status == 202 else _error(fault.status, "Refused by the script.", "scripted").body
    return _Answer(fault.status, fault.body or plain, fault.headers, fault.close, fault.hold)


def _error(status: int, message: str, code: str | None = None) -> _Answer:
    kind = code or {400: "invalid_request_error", 409: "conflict_error"}[status]
    return _Answer(status, {"error": {"message": message, "type": kind, "code": kind, "param": None}})


def _page(request: Request, rows: Sequence[JSON]) -> _Answer:
    ordered = list(rows) if "order=asc" in request.query else list(reversed(rows))
    first, last = (ordered[0]["id"], ordered[-1]["id"]) if ordered else (None, None)
    return _Answer(200, {"object": "list", "data": ordered, "first_id": first, "last_id": last, "has_more": False})


@asynccontextmanager
async def play(*sessions: PlayedSession) -> AsyncGenerator[WirePlayer]:
    """Serve these sessions (one plain one, if none is given) until the block ends; its own exception comes out bare."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        player = WirePlayer(sessions or (PlayedSession(),), port=listener.extra(SocketAttribute.local_port))
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, player.converse)
            try:
                yield player
            except Exception as error:
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
