"""What a command may ask a daemon to do; each answers with the state that followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from answerback.actors.turns import TurnResult
from answerback.app import App
from answerback.daemon.admin.replies import BodyError, UnknownSessionError, read_object, reply, text_of
from answerback.daemon.output import call_facts, session_facts
from answerback.daemon.verdicts import verdict_of
from answerback.errors import ConfigurationError
from answerback.model import CallRecord, SessionRecord
from answerback.names import short_ids
from answerback.runtime import Runtime
from answerback.sessions import SessionRef


class Actions:
    """Handlers of the write routes.

    Args:
        runtime: who does it.
        app: what sessions are opened with.
        stop: tells the daemon to drain.
    """

    def __init__(self, runtime: Runtime, *, app: App, stop: Callable[[], None]) -> None:
        self._runtime = runtime
        self._app = app
        self._stop = stop

    def __repr__(self) -> str:
        return f"<Actions of {self._runtime!r}>"

    async def decide(self, request: Request) -> Response:
        """Decide a call whose outcome nobody knows."""
        body = await read_object(request)
        verdict = verdict_of(text_of(body, "verdict") or "", output=body.get("output"), text=text_of(body, "text"))
        return await self._call(await self._runtime.decide(_name(request), verdict))

    async def approve(self, request: Request) -> Response:
        """Say yes to a call that waits for it."""
        body = await read_object(request)
        record = await self._runtime.approve(_name(request), by=text_of(body, "by"), reason=text_of(body, "reason"))
        return await self._call(record)

    async def reject(self, request: Request) -> Response:
        """Say no to a call that waits for a yes."""
        body = await read_object(request)
        record = await self._runtime.reject(_name(request), by=text_of(body, "by"), reason=text_of(body, "reason"))
        return await self._call(record)

    async def resend(self, request: Request) -> Response:
        """Send a stored result again."""
        return await self._call(await self._runtime.resend(_name(request)))

    async def cancel(self, request: Request) -> Response:
        """Ask the server to cancel a session's open turn."""
        session = await self._known(request)
        await self._ref(session).cancel()
        return await self._session(session)

    async def pause(self, request: Request) -> Response:
        """Take no new calls of a session."""
        session = await self._known(request)
        await self._runtime.pause(session.session_id or "")
        return await self._session(session)

    async def resume(self, request: Request) -> Response:
        """Go on with a session."""
        session = await self._known(request)
        await self._runtime.resume(session.session_id or "")
        return await self._session(session)

    async def wake(self, request: Request) -> Response:
        """Read a session now."""
        session = await self._known(request)
        self._runtime.wake(session.session_id or "")
        return await self._session(session)

    async def drain(self, request: Request) -> Response:
        """Tell the daemon to end."""
        await read_object(request)
        self._stop()
        return reply({"draining": True}, status=202)

    async def open(self, request: Request) -> Response:
        """Return the session of a key, created with the app's agent and a first message where there is none."""
        body = await read_object(request)
        key = _needed(body, "key")
        known = await self._find(key)
        if known is not None:
            return await self._session(known)
        if self._app.agent is None:
            raise ConfigurationError('the app has no agent to open a session with: App(..., agent={"model": "..."})')
        ref = await self._runtime.open(key, input=_needed(body, "text"))
        created = await self._runtime.store.session(session_id=ref.id)
        assert created is not None
        return await self._session(created)

    async def send(self, request: Request) -> Response:
        """Send a message to a session and answer with the turn it led to."""
        body = await read_object(request)
        ref = await self.session_ref(request)
        return _turn(await ref.run(_needed(body, "text"), key=text_of(body, "key")))

    async def wait(self, request: Request) -> Response:
        """Answer with the newest turn of a session once it is over."""
        return _turn(await (await self.session_ref(request)).wait())

    async def waiting(self, request: Request) -> Response:
        """Answer with the session's calls that wait for a yes, oldest first; `?values=1` adds their arguments."""
        calls = await (await self.session_ref(request)).pending_approvals()
        names = await short_ids(self._runtime.store, calls)
        values = request.query_params.get("values") == "1"
        return reply(
            {"calls": [call_facts(one, short=name, values=values) for one, name in zip(calls, names, strict=True)]}
        )

    async def session_ref(self, request: Request) -> SessionRef:
        """Return the session a request names.

        Raises:
            UnknownSessionError: nobody knows it.
        """
        return self._ref(await self._known(request))

    def _ref(self, session: SessionRecord) -> SessionRef:
        assert session.session_id is not None
        return SessionRef(self._runtime, session.session_id)

    async def _known(self, request: Request) -> SessionRecord:
        name = _name(request)
        found = await self._find(name)
        if found is None or found.session_id is None:
            raise UnknownSessionError(f"No session is named {name!r}. `answerback ls` lists them.")
        return found

    async def _find(self, name: str) -> SessionRecord | None:
        store = self._runtime.store
        await store.flush()
        by_id = await store.session(session_id=name)
        return by_id or await store.session(key=name) or await store.session(local_id=name)

    async def _call(self, record: CallRecord) -> Response:
        (short,) = await short_ids(self._runtime.store, [record])
        return reply({"call": call_facts(record, short=short)})

    async def _session(self, session: SessionRecord) -> Response:
        now = await self._runtime.store.session(local_id=session.local_id)
        return reply({"session": session_facts(now or session)})


def _turn(turn: TurnResult) -> Response:
    error = None if turn.error is None else turn.error.get("code")
    return reply({"turn_id": turn.turn_id, "status": turn.status, "output_text": turn.output_text, "error": error})


def _needed(body: dict[str, Any], name: str) -> str:
    text = text_of(body, name)
    if not text:
        raise BodyError(f"{name} must be a text that is not empty", status=400)
    return text


def _name(request: Request) -> str:
    name = request.path_params["name"]
    assert isinstance(name, str)
    return name
