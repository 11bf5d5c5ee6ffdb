"""The control API under `/_harness`, for loopback only: log, state, script, faults, clock. Never part of /v1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from answerback.harness.core import Core
from answerback.harness.errors import ScriptError, invalid, unsupported
from answerback.harness.faults import read_faults
from answerback.harness.models.script import Script
from answerback.harness.records import is_object
from answerback.harness.responses import error_response, json_response


class Control:
    """What a test or an operator may see and change of one harness, in this process."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<Control over {self._core!r}>"

    def state(self) -> dict[str, Any]:
        """Return everything the harness knows, as JSON."""
        core = self._core
        sessions = [
            {
                "session": session.snapshot(),
                "turns": [msgspec.to_builtins(turn) for turn in session.turns],
                "items": [item.body for item in session.items],
                "calls": [msgspec.to_builtins(call) for call in session.calls.values()],
                "inbox": session.record.inbox,
                "subscribers": core.hub.count(session.id),
            }
            for session in core.sessions.values()
        ]
        return {
            "now": core.clock.now(),
            "seed": core.randomness.seed,
            "boot": core.randomness.boot,
            "knobs": msgspec.to_builtins(core.knobs),
            "sessions": sessions,
            "deleted": sorted(core.deleted),
        }

    def set_script(self, script: Script) -> None:
        """Put another script in place, for turns that begin from now on."""
        self._core.set_script(script)


def control_routes(core: Core, control: Control) -> list[Route]:
    """List the routes of the control API."""

    async def log(request: Request) -> Response:
        after = int(request.query_params.get("after", "0"))
        return json_response([entry for entry in core.log.entries if entry.seq > after])

    async def state(request: Request) -> Response:  # noqa: ARG001 - an endpoint's signature
        return json_response(control.state())

    async def script(request: Request) -> Response:
        return await _changed(request, lambda data: control.set_script(Script.from_data(data)))

    async def faults(request: Request) -> Response:
        if request.method == "DELETE":
            core.faults.clear()
        elif request.method == "POST":
            return await _changed(request, lambda data: core.faults.add(*read_faults(data)))
        fired = msgspec.to_builtins(core.faults.fired)
        return json_response({"rules": core.faults.describe(), "fired": fired, "exhausted": core.faults.exhausted})

    async def clock(request: Request) -> Response:
        def advance(data: Any) -> None:
            seconds = data.get("advance") if is_object(data) else None
            if not isinstance(seconds, int | float) or seconds < 0:
                raise ScriptError('send {"advance": seconds}, a number that is not negative')
            core.clock.advance(seconds)

        return await _changed(request, advance)

    async def webhooks(request: Request) -> Response:  # noqa: ARG001 - an endpoint's signature
        return error_response(unsupported("webhooks"))

    return [
        Route("/_harness/log", log, methods=["GET"]),
        Route("/_harness/state", state, methods=["GET"]),
        Route("/_harness/script", script, methods=["POST"]),
        Route("/_harness/faults", faults, methods=["GET", "POST", "DELETE"]),
        Route("/_harness/clock", clock, methods=["POST"]),
        Route("/_harness/webhooks", webhooks, methods=["POST"]),
    ]


async def _changed(request: Request, change: Callable[[Any], None]) -> Response:
    try:
        change(msgspec.json.decode(await request.body()))
    except (msgspec.DecodeError, ScriptError) as error:
        return error_response(invalid(str(error)))
    return json_response({"ok": True})
