"""The endpoint that takes inputs: the matrix, idempotency, the faults of posts, and the log."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from answerback.harness.bodies import event_bytes, read_json
from answerback.harness.core import Core
from answerback.harness.errors import WireError, conflict, invalid
from answerback.harness.inputs import Cancel, Check, Input, Message, ToolResult, apply, read_inputs
from answerback.harness.records import KeyUse
from answerback.harness.responses import error_response, fault_response, json_response, replaces
from answerback.harness.state import SessionState


class Events:
    """The endpoint that takes inputs: the matrix, idempotency and the log."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<Events over {self._core!r}>"

    async def post(self, request: Request) -> Response:
        """Take a batch of input events, all or none; 202 says accepted, not done."""
        core, session_id = self._core, request.path_params["session_id"]
        body = await request.body()
        inputs: list[Input] = []
        refusal: WireError | None = None
        try:
            inputs = read_inputs(read_json(body, request.headers.get("content-type")))
        except WireError as error:
            refusal = error
        posting = _Posting(session_id, body, request.headers.get("idempotency-key"), inputs, refusal)
        call_ids = [event.call_id for event in inputs if isinstance(event, ToolResult)]
        do = core.faults.request("post", session_id, events=posting.types, call_ids=call_ids)
        if do is None:
            return self._take(posting, told=None)
        await core.pause(do.stall + do.delay)
        told = (do.status or 0) if replaces(do) else None
        if told is not None and not do.apply:
            self._log(posting, status=told, effects=None, code="fault")
            core.commits.submit(None, [])
            return fault_response(do)
        response: Response | None = None
        for _ in range(1 + do.duplicate):
            # The client hears the answer to the first; the copies a proxy made are answered to nobody.
            answer = self._take(posting, told=told)
            response = response or answer
        assert response is not None
        return fault_response(do) if told is not None else response

    def _take(self, posting: _Posting, *, told: int | None) -> Response:
        core = self._core
        try:
            session = core.find(posting.session_id)
            use = self._key_use(session, posting)
            if use is not None:
                self._log(posting, status=told if told is not None else core.knobs.events_status, effects=None)
                core.commits.submit(session, [])
                return self._accepted()
            self._check(session, posting)
        except WireError as error:
            self._log(posting, status=told if told is not None else error.status, effects=None, code=error.code)
            core.commits.submit(None, [])
            return error_response(error)
        applied = apply(session, posting.inputs)
        frames = applied.frames
        if posting.key is not None and core.knobs.idempotency == "remember":
            use = KeyUse(session_id=session.id, key=posting.key, body_sha256=posting.sha256)
            session.keys[posting.key] = use
            session.touch(use)
        if applied.messages and core.knobs.admission == "sync":
            frames += core.admit_now(session, applied.messages)
        self._log(posting, status=told if told is not None else core.knobs.events_status, effects=applied.effects)
        core.commits.submit(session, frames)
        if applied.cancelled:
            core.runner.stop(session.id)
        if applied.answered:
            core.runner.wake(session.id)
        if applied.messages and core.knobs.admission == "async":
            core.admit_soon(session, applied.messages)
        return self._accepted()

    def _key_use(self, session: SessionState, posting: _Posting) -> KeyUse | None:
        """Return the earlier use of the key with the same body, or None.

        Raises:
            WireError: 400 for a bad key, 409 for one used with another body.
        """
        key = posting.key
        if key is None:
            return None
        if not 1 <= len(key) <= 256:
            raise invalid("Idempotency-Key must have 1 to 256 characters.")
        use = session.keys.get(key)
        if use is not None and use.body_sha256 != posting.sha256:
            raise conflict("this Idempotency-Key was used with another body")
        return use

    def _check(self, session: SessionState, posting: _Posting) -> None:
        if posting.refusal is not None:
            raise posting.refusal
        check = Check(session)
        limit = self._core.knobs.max_result_bytes
        for event, element in zip(posting.inputs, posting.elements, strict=True):
            if limit and isinstance(event, ToolResult) and len(element) > limit:
                raise invalid(f"The result of {event.call_id} is larger than {limit} bytes.")
            error = check.event(event)
            if error is not None:
                raise error

    def _accepted(self) -> Response:
        status = self._core.knobs.events_status
        return json_response({}) if status == 200 else Response(status_code=status)

    def _log(self, posting: _Posting, *, status: int, effects: Sequence[bool] | None, code: str | None = None) -> None:
        log, request = self._core.log, self._core.log.request()
        if not posting.elements:
            kind = "other" if posting.refusal is not None else "empty"
            log.add(
                kind, session_id=posting.session_id, status=status, body=posting.body, effect=False, request=request,
                key=posting.key, code=code,
            )  # fmt: skip
        for n, element in enumerate(posting.elements):
            event = posting.inputs[n] if posting.inputs else None
            result = event if isinstance(event, ToolResult) else None
            log.add(
                posting.kinds[n], session_id=posting.session_id, status=status, body=posting.body, request=request,
                effect=bool(effects and effects[n]), key=posting.key, element=element, code=code,
                turn_id=result.turn_id if result else None, call_id=result.call_id if result else None,
            )  # fmt: skip


class _Posting:
    """One POST of events, taken apart."""

    def __init__(
        self, session_id: str, body: bytes, key: str | None, inputs: list[Input], refusal: WireError | None
    ) -> None:
        self.session_id = session_id
        self.body = body
        self.key = key
        self.inputs = inputs
        self.refusal = refusal
        self.sha256 = hashlib.sha256(body).hexdigest()
        self.elements = event_bytes(body)

    @property
    def types(self) -> list[str]:
        """The wire types of the events."""
        return [f"agent.session.input.{kind}" for kind in self.kinds]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events, as the log names them."""
        if not self.inputs:
            return ["other"] * len(self.elements)
        return [_kind(event) for event in self.inputs]


def _kind(event: Input) -> str:
    match event:
        case Message():
            return "message"
        case Cancel():
            return "cancel"
        case ToolResult():
            return "tool_result"
