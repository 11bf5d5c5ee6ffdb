"""The Telegram bot on the real python-telegram-bot, against a fake Bot API: delivered twice, killed, asked, long."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from example_run import LocalApi, local_api
from examples.bot_process import SCRIPT, Bot, bot, locked, refunds, turns
from examples.fake_platform import Answer, serving
from examples.fake_telegram import LONGEST, TOKEN, FakeTelegram


@contextmanager
def chats() -> Generator[tuple[FakeTelegram, LocalApi]]:
    telegram = FakeTelegram()
    with serving(telegram), local_api(SCRIPT) as api:
        yield telegram, api


@contextmanager
def telegram_bot(folder: Path, telegram: FakeTelegram, api: LocalApi, **environment: str) -> Generator[Bot]:
    settings = {"TELEGRAM_TOKEN": TOKEN, "TELEGRAM_API_URL": telegram.url, **environment}
    with bot("telegram_bot", folder, api, settings) as running:
        yield running


def test_an_update_delivered_again_is_answered_once_also_after_a_restart(tmp_path: Path) -> None:
    with chats() as (telegram, api):
        with telegram_bot(tmp_path, telegram, api):
            telegram.say("hello")
            telegram.until_shown("You said: hello")
            telegram.say("hello")
            telegram.until_confirmed()
        with telegram_bot(tmp_path, telegram, api):
            telegram.say("hello")
            telegram.say("and again", update=2)
            telegram.say("from elsewhere", update=3, chat=6)
            telegram.until(
                lambda: (
                    {one.text for one in telegram.messages[1:]} >= {"You said: and again", "You said: from elsewhere"}
                )
            )
        assert turns(api) == 3
        assert len(api.sessions()) == 2
    assert len(telegram.messages) == 3


def test_what_arrived_while_the_bot_was_away_and_what_a_killed_one_had_in_work_is_answered(tmp_path: Path) -> None:
    with chats() as (telegram, api):
        with telegram_bot(tmp_path, telegram, api, SHOP_SECONDS="1.5") as running:
            telegram.say("pack A-17")
            telegram.until_shown("packing lamp (1 of 3)")
            running.kill()
        telegram.say("hello", update=2)
        with telegram_bot(tmp_path, telegram, api):
            telegram.until_shown("3 pieces packed.")
            telegram.until_shown("You said: hello", 1)
            assert turns(api) == 2
    assert len(telegram.messages) == 2


def test_an_update_that_could_not_be_kept_is_not_confirmed_so_that_telegram_sends_it_again(tmp_path: Path) -> None:
    with chats() as (telegram, api):
        with telegram_bot(tmp_path, telegram, api) as running, locked(tmp_path / "telegram-inbox.db"):
            telegram.say("hello")
            assert "OperationalError" in running.failed()
        with telegram_bot(tmp_path, telegram, api):
            telegram.until_shown("You said: hello")
            telegram.until_confirmed()
            assert turns(api) == 1


def test_a_refund_waits_for_a_button_is_kept_across_a_kill_and_is_paid_once(tmp_path: Path) -> None:
    with chats() as (telegram, api):
        with telegram_bot(tmp_path, telegram, api) as running:
            telegram.say("refund A-18")
            data = telegram.until_asked()["Approve"]
            running.kill()
            assert refunds(tmp_path) == []
        with telegram_bot(tmp_path, telegram, api, SHOP_SECONDS="60") as running:
            telegram.press("Approve", update=2, data=data)
            telegram.until_shown("A-18: waiting for the bank")
            assert len(refunds(tmp_path)) == 1
            running.kill()
        with telegram_bot(tmp_path, telegram, api):
            assert telegram.until_shown("A-18 refunded").buttons == {}
            telegram.press("Approve", update=3, data=data)
            telegram.until(lambda: telegram.told[-1:] == ["That is not an open question (any more)."])
    assert "refund: approved." in telegram.told
    assert len(refunds(tmp_path)) == 1
    assert len(telegram.messages) == 1


def test_a_rejected_refund_is_not_paid_and_a_button_of_another_chat_decides_nothing(tmp_path: Path) -> None:
    with chats() as (telegram, api), telegram_bot(tmp_path, telegram, api):
        telegram.say("refund everything")
        buttons = dict(telegram.until_asked())
        telegram.until(lambda: len(telegram.messages[0].buttons) == 4)
        buttons = telegram.messages[0].buttons
        assert "1. May I run refund(order_id=" in telegram.messages[0].text
        telegram.say("hello", update=2, chat=6)
        telegram.until_shown("You said: hello", 1)
        telegram.press("", update=3, number=1, data=buttons["Approve 1"])
        telegram.until(lambda: telegram.told == ["That is not an open question (any more)."])
        telegram.press("", update=4, data=buttons["Reject 1"])
        telegram.press("", update=5, data=buttons["Approve 2"])
        telegram.until_shown("The call was not approved.; A-18 refunded")
    assert len(refunds(tmp_path)) == 1


def test_a_long_reply_is_split_at_the_limit(tmp_path: Path) -> None:
    with chats() as (telegram, api), telegram_bot(tmp_path, telegram, api):
        telegram.say("tell me a long story")
        telegram.until(lambda: bool(telegram.messages) and telegram.messages[-1].text.endswith("The end."))
        assert turns(api) == 1
    texts = [message.text for message in telegram.messages]
    assert len(texts) > 4
    assert all(len(text) <= LONGEST for text in texts)
    whole = "\n\n".join(texts)
    assert whole.count("& its cable <travel>.") == 300


def test_a_greeting_needs_no_agent_and_trouble_passes(tmp_path: Path) -> None:
    with chats() as (telegram, api), telegram_bot(tmp_path, telegram, api):
        slow = {"ok": False, "error_code": 429, "description": "Too Many Requests", "parameters": {"retry_after": 1}}
        telegram.say("/start")
        telegram.until_shown("Hello.")
        telegram.trouble("sendMessage", Answer(429, slow))
        telegram.trouble("sendMessage", Answer(502, {"ok": False, "error_code": 502, "description": "Bad Gateway"}))
        telegram.trouble("getUpdates", Answer(502, {"ok": False, "error_code": 502, "description": "Bad Gateway"}))
        telegram.say("hello", update=2)
        telegram.until_shown("You said: hello", 1)
        assert turns(api) == 1
