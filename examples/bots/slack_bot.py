"""A bot on Slack, with slack-bolt: mention it in a channel, or write to it. One session per thread.

Needs SLACK_BOT_TOKEN and SLACK_SIGNING_SECRET; Slack sends events and button presses to /slack/events on PORT (3000).
"""

from __future__ import annotations

import html
import json
import os
import re
from typing import Any

import aiohttp
import anyio
from aiohttp import web
from slack_bolt.async_app import AsyncAck, AsyncApp, AsyncRespond
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from common.desk import Busy, Desk, Question, Refused, View
from common.setting import open_desk, until_told_to_stop

PASSING = frozenset({"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable"})
OURS = frozenset({"invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive"})
"""Refusals that are about our token, not about the message: it waits until somebody has put that right."""


class Slack:
    """Slack's channels as places where messages are shown; a place is `slack:TEAM:CHANNEL:THREAD`."""

    limit = 4000  # what Slack recommends for `text`; it cuts a text at 40,000 characters
    pace = 1.2  # chat.update: about 50 a minute

    def __init__(self, client: AsyncWebClient) -> None:
        # Slack's libraries leave parts of their types unknown; what is used of them is little.
        self._client: Any = client

    def size(self, text: str) -> int:
        """Count a text as it is sent, with three characters escaped."""
        return len(_escaped(text))

    async def post(self, place: str, view: View, *, key: str) -> str:
        """Post into the thread. Slack knows no key: after a crash between this and the note of it, it posts twice."""
        _, _, channel, thread = place.split(":")
        body = {"channel": channel, "thread_ts": thread or None, **_shown(place, view)}
        answer = await self._call("chat.postMessage", body)
        return str(answer["ts"])

    async def edit(self, place: str, message: str, view: View) -> None:
        """Update the message."""
        await self._call("chat.update", {"channel": place.split(":")[2], "ts": message, **_shown(place, view)})

    async def _call(self, method: str, body: dict[str, Any]) -> Any:
        try:
            return await self._client.api_call(method, json=body)
        except SlackApiError as error:
            status, code = _status(error)
            if status == 429 or status >= 500 or code in PASSING:
                raise Busy(_retry_after(error)) from error
            if code in OURS:
                raise Busy(30.0) from error
            raise Refused from error
        except (TimeoutError, aiohttp.ClientError) as error:
            raise Busy from error


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _status(error: SlackApiError) -> tuple[int, str]:
    answer: Any = error.response
    return int(answer.status_code), str(answer.get("error") or "")


def _retry_after(error: SlackApiError) -> float | None:
    answer: Any = error.response
    value = answer.headers.get("Retry-After")
    return float(value) if value else None


def _shown(place: str, view: View) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    if view.questions:
        blocks.append(_section(view.text[-3000:]))
    for question in view.questions:
        blocks += [_section(question.text), _buttons(place, question)]
    # An empty list takes the buttons away.
    return {"text": _escaped(view.text), "blocks": blocks, "unfurl_links": False}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "plain_text", "text": text}}


def _buttons(place: str, question: Question) -> dict[str, Any]:
    def button(action: str, label: str, style: str) -> dict[str, Any]:
        value = json.dumps({"place": place, "call": question.call})
        text = {"type": "plain_text", "text": label}
        return {"type": "button", "action_id": action, "text": text, "style": style, "value": value}

    return {"type": "actions", "elements": [button("yes", "Approve", "primary"), button("no", "Reject", "danger")]}


class Bot:
    """What the app listens to."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def listen(self, app: AsyncApp) -> None:
        """Register with an app."""
        registry: Any = app
        registry.event("app_mention")(self.heard)
        registry.event("message")(self.heard)
        registry.action(re.compile("^(yes|no)$"))(self.pressed)

    async def heard(self, body: dict[str, Any], event: dict[str, Any]) -> None:
        """Take a message over; Slack is answered when it is on the disk, and sends it again until then."""
        direct = event.get("channel_type") == "im"
        # Mentions in a channel come as app_mention as well; edits, joins and other bots are not for us.
        if event.get("subtype") or event.get("bot_id") or (event["type"] == "message" and not direct):
            return
        thread = event.get("thread_ts") or ("" if direct else event["ts"])
        text = html.unescape(re.sub(r"<@\w+>", "", event.get("text") or "")).strip()
        if text:
            place = f"slack:{body['team_id']}:{event['channel']}:{thread}"
            await self._desk.take(f"slack:{body['event_id']}", place, text)

    async def pressed(self, ack: AsyncAck, body: dict[str, Any], action: dict[str, Any], respond: AsyncRespond) -> None:
        """Decide as the button says."""
        value = json.loads(action["value"])
        yes, by = action["action_id"] == "yes", body["user"]["id"]
        said = await self._desk.decide(value["place"], value["call"], yes=yes, by=by)
        await ack()
        await respond(said, response_type="ephemeral", replace_original=False)


async def main() -> None:
    client = AsyncWebClient(
        token=os.environ["SLACK_BOT_TOKEN"], base_url=os.environ.get("SLACK_API_URL", "https://slack.com/api/")
    )
    # process_before_response: Bolt would otherwise tell Slack "received" before the message is on the disk.
    app = AsyncApp(client=client, signing_secret=os.environ["SLACK_SIGNING_SECRET"], process_before_response=True)
    async with open_desk("slack", Slack(client)) as desk:
        Bot(desk).listen(app)
        runner = web.AppRunner(app.web_app())
        await runner.setup()
        try:
            host, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "3000"))
            await web.TCPSite(runner, host, port).start()
            print(f"listening on port {runner.addresses[0][1]}", flush=True)
            await until_told_to_stop()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    anyio.run(main)
