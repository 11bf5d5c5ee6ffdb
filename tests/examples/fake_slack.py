"""Slack as the bot sees it: the Web API's three methods it calls, and signed requests to its endpoint."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import httpx2
from slack_sdk.signature import SignatureVerifier

from examples.fake_platform import Answer, FakePlatform, Posted

TOKEN = "xoxb-local"
SECRET = "signing-secret"
LONGEST = 4000
BOT = {"ok": True, "url": "https://t.slack.com/", "team": "T", "user": "bot", "team_id": "T1", "user_id": "UBOT", "bot_id": "BBOT"}  # fmt: skip


class FakeSlack(FakePlatform):
    """One workspace."""

    def __init__(self) -> None:
        super().__init__()
        self.bot_url = ""
        self.told: list[str] = []
        self.threads: list[str | None] = []
        self._numbers = itertools.count(1)

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Answer as the Web API does: 200 with `ok`, whatever it thinks of the request."""
        method = path.rpartition("/")[2]
        if method == "told":
            self.told.append(json.loads(body)["text"])
            return Answer(200, {"ok": True})
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(200, {"ok": False, "error": "invalid_auth"})
        given: dict[str, Any] = {} if method == "auth.test" else json.loads(body)
        if len(given.get("text", "")) > LONGEST or any(_too_long(block) for block in given.get("blocks", [])):
            return Answer(200, {"ok": False, "error": "msg_too_long"})
        match method:
            case "auth.test":
                return Answer(200, BOT)
            case "chat.postMessage":
                message = Posted(f"{next(self._numbers)}.000200", given["channel"], [given["text"]], _buttons(given))
                self.messages.append(message)
                self.threads.append(given.get("thread_ts"))
                return Answer(200, {"ok": True, "ts": message.id})
            case "chat.update":
                found = self.find(given["channel"], given["ts"])
                if found is None:
                    return Answer(200, {"ok": False, "error": "message_not_found"})
                found.shown.append(given["text"])
                found.buttons = _buttons(given)
                return Answer(200, {"ok": True, "ts": found.id})
            case _:
                return Answer(200, {"ok": False, "error": "unknown_method"})

    def mention(
        self, text: str, *, event_id: str = "Ev1", ts: str = "100.1", secret: str = SECRET, **extra: Any
    ) -> int:
        """Deliver a message that names the bot; return the bot's status."""
        event = {"type": "app_mention", "user": "U1", "text": f"<@UBOT> {text}", "ts": ts, "channel": "C1", **extra}
        body = {"type": "event_callback", "team_id": "T1", "api_app_id": "A1", "event_id": event_id, "event": event}
        return self._deliver(json.dumps(body), "application/json", secret)

    def press(self, label: str, *, number: int = 0, by: str = "U1", buttons: dict[str, str] | None = None) -> int:
        """Press a button of a message."""
        value = (buttons or self.messages[number].buttons)[label]
        action = {"type": "button", "block_id": "b", "value": value, "action_ts": "1.1"}
        payload = {
            "type": "block_actions",
            "team": {"id": "T1"},
            "user": {"id": by, "team_id": "T1"},
            "channel": {"id": "C1"},
            "response_url": f"{self.url}/told",
            "actions": [{**action, "action_id": "yes" if label.startswith("Approve") else "no"}],
        }
        return self._deliver(urlencode({"payload": json.dumps(payload)}), "application/x-www-form-urlencoded", SECRET)

    def _deliver(self, body: str, kind: str, secret: str) -> int:
        at = str(int(time.time()))
        signature = SignatureVerifier(secret).generate_signature(timestamp=at, body=body)
        headers = {"content-type": kind, "x-slack-request-timestamp": at, "x-slack-signature": signature or ""}
        return httpx2.post(f"{self.bot_url}/slack/events", content=body, headers=headers, timeout=10).status_code


def _too_long(block: Mapping[str, Any]) -> bool:
    return block["type"] == "section" and not 0 < len(block["text"]["text"]) <= 3000


def _buttons(given: Mapping[str, Any]) -> dict[str, str]:
    blocks: list[dict[str, Any]] = given.get("blocks", [])
    actions = [block["elements"] for block in blocks if block["type"] == "actions"]
    return {
        f"{button['text']['text']} {number}": button["value"]
        for number, row in enumerate(actions, start=1)
        for button in row
    }
