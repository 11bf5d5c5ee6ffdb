"""A bot on Telegram, with python-telegram-bot. One session per chat, or per topic of a forum. Needs TELEGRAM_TOKEN."""

from __future__ import annotations

import os
from contextlib import suppress

import anyio
from telegram import Bot, CallbackQuery, InlineKeyboardButton, InlineKeyboardMarkup, Message, Update
from telegram.constants import MessageLimit
from telegram.error import BadRequest, Forbidden, NetworkError, RetryAfter, TelegramError

from common.desk import Busy, Desk, Question, Refused, View
from common.setting import open_desk, until_told_to_stop
from common.splitting import clip

GREETING = "Hello. Tell me what you need."
POLL = 30
"""Seconds a request for updates stays open while there are none."""


class Telegram:
    """Telegram's chats as places where messages are shown; a place is `telegram:CHAT:TOPIC`."""

    limit = int(MessageLimit.MAX_TEXT_LENGTH)
    pace = 1.0  # about one message a second in a chat

    def __init__(self, bot: Bot) -> None:
        self._bot = bot

    def size(self, text: str) -> int:
        """Count UTF-16 code units, as Telegram does: most emoji are two."""
        return len(text.encode("utf-16-le")) // 2

    async def post(self, place: str, view: View, *, key: str) -> str:
        """Send a message. Telegram knows no key: after a crash between this and the note of it, it is sent twice."""
        _, chat, topic = place.split(":")
        text, buttons = self._shown(view)
        try:
            sent = await self._bot.send_message(
                int(chat), text, message_thread_id=int(topic) if topic else None, reply_markup=buttons
            )
        except TelegramError as error:
            raise _meaning(error) from error
        return str(sent.message_id)

    async def edit(self, place: str, message: str, view: View) -> None:
        """Edit the message."""
        text, buttons = self._shown(view)
        try:
            await self._bot.edit_message_text(
                text, chat_id=int(place.split(":")[1]), message_id=int(message), reply_markup=buttons
            )
        except BadRequest as error:
            if "not modified" not in error.message:
                raise Refused from error
        except TelegramError as error:
            raise _meaning(error) from error

    def _shown(self, view: View) -> tuple[str, InlineKeyboardMarkup | None]:
        """Return text and buttons; as many questions as fit into one message."""
        asked: list[str] = []
        rows: list[list[InlineKeyboardButton]] = []
        for number, question in enumerate(view.questions, start=1):
            if self.size("\n\n".join([*asked, question.text])) > self.limit - 200:
                break
            asked.append(f"{number}. {question.text}" if len(view.questions) > 1 else question.text)
            rows.append(_buttons(question, f" {number}" if len(view.questions) > 1 else ""))
        if not rows:
            return view.text, None
        room = self.limit - self.size("\n\n".join(["", *asked])) - 10
        return "\n\n".join([clip(view.text, room, size=self.size), *asked]), InlineKeyboardMarkup(rows)


def _buttons(question: Question, number: str) -> list[InlineKeyboardButton]:
    return [
        InlineKeyboardButton(f"Approve{number}", callback_data=f"yes:{question.call}"),
        InlineKeyboardButton(f"Reject{number}", callback_data=f"no:{question.call}"),
    ]


def _meaning(error: TelegramError) -> Exception:
    """Tell "later" from "never"."""
    if isinstance(error, RetryAfter):
        after = error.retry_after
        return Busy(after if isinstance(after, int) else after.total_seconds())
    # A BadRequest is a NetworkError to this library, although it is an answer.
    if isinstance(error, NetworkError) and not isinstance(error, BadRequest):
        return Busy()
    return Refused() if isinstance(error, (BadRequest, Forbidden)) else error


async def listen(bot: Bot, desk: Desk) -> None:
    """Take updates over, one by one.

    The library's own Updater tells Telegram "received" when an update is in its memory. Here the next request says
    so, which is made when the last update is on the disk: what a killed bot had not stored is delivered again.
    """
    offset: int | None = None
    while True:
        try:
            updates = await bot.get_updates(
                offset=offset, timeout=POLL, allowed_updates=[Update.MESSAGE, Update.CALLBACK_QUERY]
            )
        except TelegramError as error:
            meaning = _meaning(error)
            if not isinstance(meaning, Busy):
                raise
            await anyio.sleep(meaning.after or 1.0)
            continue
        for update in updates:
            if update.message is not None and update.message.text:
                await heard(bot, desk, update.update_id, update.message)
            elif update.callback_query is not None:
                await pressed(desk, update.callback_query)
            offset = update.update_id + 1


async def heard(bot: Bot, desk: Desk, update: int, message: Message) -> None:
    """Take a message over."""
    if message.text == "/start":
        with suppress(NetworkError, Forbidden):
            await message.reply_text(GREETING)
        return
    await desk.take(f"telegram:{bot.id}:{update}", _place(message), message.text or "")


async def pressed(desk: Desk, query: CallbackQuery) -> None:
    """Decide as the button says."""
    if not isinstance(query.message, Message) or query.data is None:
        return
    verdict, _, call = query.data.partition(":")
    said = await desk.decide(_place(query.message), call, yes=verdict == "yes", by=str(query.from_user.id))
    with suppress(NetworkError):
        # Too late for Telegram's taste, or not reachable: the decision stands.
        await query.answer(said)


def _place(message: Message) -> str:
    topic = message.message_thread_id if message.is_topic_message else None
    return f"telegram:{message.chat.id}:{topic or ''}"


async def main() -> None:
    # The library's times as timedelta, as its next release has them; without it every use warns.
    os.environ.setdefault("PTB_TIMEDELTA", "1")
    api = os.environ.get("TELEGRAM_API_URL", "https://api.telegram.org")
    async with (
        Bot(os.environ["TELEGRAM_TOKEN"], base_url=f"{api}/bot") as bot,
        open_desk("telegram", Telegram(bot)) as desk,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listen, bot, desk)
        print(f"listening as {bot.username}", flush=True)
        await until_told_to_stop()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
