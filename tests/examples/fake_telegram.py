"""Telegram as the bot sees it: updates that are delivered until the next request confirms them, messages, edits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from example_run import PATIENCE
from examples.fake_platform import Answer, FakePlatform, Posted

TOKEN = "42:local"
LONGEST = 4096
ME = {"id": 42, "is_bot": True, "first_name": "Shop", "username": "shop_bot"}
ADA = {"id": 7, "is_bot": False, "first_name": "Ada"}


class FakeTelegram(FakePlatform):
    """One bot's side of Telegram."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[dict[str, Any]] = []
        self.told: list[str] = []
        self._numbers = itertools.count(500)

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Answer as the Bot API does."""
        _, bot, method = path.split("/")
        if bot != f"bot{TOKEN}":
            return _refused(401, "Unauthorized")
        given = dict(parse_qsl(body.decode(), keep_blank_values=True))
        match method:
            case "getMe":
                return _ok(ME)
            case "getUpdates":
                return self._updates(int(given.get("offset") or 0), float(given.get("timeout") or 0))
            case "sendMessage":
                return self._send(given)
            case "editMessageText":
                return self._edit(given)
            case "answerCallbackQuery":
                self.told.append(given.get("text", ""))
                return _ok(True)
            case _:
                return _refused(404, "Not Found")

    def say(self, text: str, *, update: int = 1, chat: int = 5, **extra: Any) -> None:
        """Let Ada say something."""
        self._arrive({"update_id": update, "message": {**_message(900 + update, chat, text), "from": ADA, **extra}})

    def press(self, label: str, *, update: int, number: int = 0, by: int = 7, data: str | None = None) -> None:
        """Press a button of a message."""
        posted = self.messages[number]
        query = {
            "id": str(update),
            "from": {**ADA, "id": by},
            "chat_instance": "i",
            "data": data or posted.buttons[label],
            "message": {**_message(int(posted.id), int(posted.chat), posted.text), "from": ME},
        }
        self._arrive({"update_id": update, "callback_query": query})

    def until_confirmed(self) -> None:
        """Return once the bot has said that it has everything."""
        self.until(lambda: not self.waiting)

    def _arrive(self, update: dict[str, Any]) -> None:
        with self._changed:
            self.waiting.append(update)
            self._changed.notify_all()

    def _updates(self, offset: int, timeout: float) -> Answer:
        self.waiting[:] = [update for update in self.waiting if update["update_id"] >= offset]
        self._changed.notify_all()
        # Gives the lock up while it waits. Short, so that a fake that is closed is not held open by it.
        self._changed.wait_for(lambda: self.waiting, min(timeout, PATIENCE, 2.0))
        return _ok(list(self.waiting))

    def _send(self, given: Mapping[str, str]) -> Answer:
        if _size(given["text"]) > LONGEST:
            return _refused(400, "Bad Request: message is too long")
        posted = Posted(str(next(self._numbers)), given["chat_id"], [given["text"]], _buttons(given))
        self.messages.append(posted)
        return _ok(_message(int(posted.id), int(posted.chat), posted.text))

    def _edit(self, given: Mapping[str, str]) -> Answer:
        posted = self.find(given["chat_id"], given["message_id"])
        if posted is None:
            return _refused(400, "Bad Request: message to edit not found")
        if _size(given["text"]) > LONGEST:
            return _refused(400, "Bad Request: MESSAGE_TOO_LONG")
        if (given["text"], _buttons(given)) == (posted.text, posted.buttons):
            return _refused(400, "Bad Request: message is not modified: specified new message content is the same")
        posted.shown.append(given["text"])
        posted.buttons = _buttons(given)
        return _ok(_message(int(posted.id), int(posted.chat), posted.text))


def _message(identity: int, chat: int, text: str) -> dict[str, Any]:
    return {"message_id": identity, "date": 1, "chat": {"id": chat, "type": "private"}, "text": text}


def _buttons(given: Mapping[str, str]) -> dict[str, str]:
    rows: list[list[dict[str, str]]] = json.loads(given.get("reply_markup") or "{}").get("inline_keyboard", [])
    return {button["text"]: button["callback_data"] for row in rows for button in row}


def _size(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _ok(result: Any) -> Answer:
    return Answer(200, {"ok": True, "result": result})


def _refused(status: int, description: str) -> Answer:
    return Answer(status, {"ok": False, "error_code": status, "description": description})
