"""The Slack bot on the real slack-bolt, against a fake workspace: delivered twice, killed, asked, long."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from example_run import LocalApi, local_api
from examples.bot_process import SCRIPT, Bot, bot, locked, refunds, turns
from examples.fake_platform import Answer, serving
from examples.fake_slack import LONGEST, SECRET, TOKEN, FakeSlack


@contextmanager
def workspace() -> Generator[tuple[FakeSlack, LocalApi]]:
    slack = FakeSlack()
    with serving(slack), local_api(SCRIPT) as api:
        yield slack, api


@contextmanager
def slack_bot(folder: Path, slack: FakeSlack, api: LocalApi, **environment: str) -> Generator[Bot]:
    settings = {"SLACK_BOT_TOKEN": TOKEN, "SLACK_SIGNING_SECRET": SECRET, "SLACK_API_URL": f"{slack.url}/api/"}
    with bot("slack_bot", folder, api, {"PORT": "0", **settings, **environment}) as running:
        slack.bot_url = f"http://127.0.0.1:{running.greeting.rpartition(' ')[2]}"
        yield running


def test_an_event_delivered_again_is_answered_once_in_its_thread_also_after_a_restart(tmp_path: Path) -> None:
    with workspace() as (slack, api):
        with slack_bot(tmp_path, slack, api):
            assert slack.mention("hello &amp; welcome") == 200
            assert slack.mention("hello &amp; welcome") == 200
            slack.until_shown("You said: hello &amp; welcome")
            assert slack.mention("hello &amp; welcome") == 200
        with slack_bot(tmp_path, slack, api):
            assert slack.mention("hello &amp; welcome") == 200
            assert slack.mention("and again", event_id="Ev2", ts="100.2", thread_ts="100.1") == 200
            slack.until_shown("You said: and again", 1)
        assert turns(api) == 2
        assert len(api.sessions()) == 1
    assert slack.threads == ["100.1", "100.1"]


def test_an_event_that_could_not_be_kept_is_not_acknowledged_so_that_slack_sends_it_again(tmp_path: Path) -> None:
    with workspace() as (slack, api), slack_bot(tmp_path, slack, api):
        with locked(tmp_path / "slack-inbox.db"):
            assert slack.mention("hello") == 500
        assert slack.mention("hello") == 200
        slack.until_shown("You said: hello")
        assert turns(api) == 1


def test_threads_are_sessions_of_their_own_and_what_is_not_for_the_bot_is_left_alone(tmp_path: Path) -> None:
    with workspace() as (slack, api), slack_bot(tmp_path, slack, api):
        assert slack.mention("one", event_id="Ev1", ts="1.1") == 200
        assert slack.mention("two", event_id="Ev2", ts="2.1") == 200
        assert slack.mention("other bot", event_id="Ev3", bot_id="B2") == 200
        assert slack.mention("edited", event_id="Ev4", type="message", subtype="message_changed") == 200
        assert slack.mention("overheard", event_id="Ev5", type="message", channel_type="channel") == 200
        assert slack.mention("private", event_id="Ev6", ts="6.1", type="message", channel_type="im") == 200
        slack.until(lambda: sum("You said" in one.text for one in slack.messages) == 3)
        assert len(api.sessions()) == 3
    assert sorted(slack.threads, key=str) == ["1.1", "2.1", None]


def test_a_request_nobody_signed_is_not_taken(tmp_path: Path) -> None:
    with workspace() as (slack, api), slack_bot(tmp_path, slack, api):
        assert slack.mention("hello", secret="guessed") == 401
        assert slack.mention("hello", event_id="Ev2") == 200
        slack.until_shown("You said: hello")
        assert turns(api) == 1


def test_progress_edits_the_message_and_a_killed_bot_goes_on_in_it(tmp_path: Path) -> None:
    with workspace() as (slack, api):
        with slack_bot(tmp_path, slack, api, SHOP_SECONDS="1.5") as running:
            slack.mention("pack A-17")
            slack.until_shown("packing lamp (1 of 3)")
            running.kill()
        with slack_bot(tmp_path, slack, api):
            slack.until_shown("3 pieces packed.")
            assert turns(api) == 1
    assert len(slack.messages) == 1


def test_a_refund_waits_for_a_button_is_kept_across_a_kill_and_is_paid_once(tmp_path: Path) -> None:
    with workspace() as (slack, api):
        with slack_bot(tmp_path, slack, api) as running:
            slack.mention("refund A-18")
            pressed = slack.until_asked()
            running.kill()
            assert refunds(tmp_path) == []
        with slack_bot(tmp_path, slack, api, SHOP_SECONDS="60") as running:
            assert slack.press("Approve 1", buttons=pressed) == 200
            slack.until(lambda: slack.told == ["refund: approved."])
            # The bank was told; its answer takes a minute, which the bot does not live.
            slack.until_shown("A-18: waiting for the bank")
            assert len(refunds(tmp_path)) == 1
            running.kill()
        with slack_bot(tmp_path, slack, api):
            posted = slack.until_shown("A-18 refunded")
            assert posted.buttons == {}
            assert slack.press("Reject 1", buttons=pressed) == 200
            slack.until(lambda: len(slack.told) == 2)
    assert slack.told[1] == "That is not an open question (any more)."
    assert len(refunds(tmp_path)) == 1
    assert len(slack.messages) == 1


def test_of_two_refunds_one_is_approved_and_one_rejected_by_those_who_may(tmp_path: Path) -> None:
    with workspace() as (slack, api), slack_bot(tmp_path, slack, api, BOT_APPROVERS="UBOSS, U2"):
        slack.mention("refund everything")
        slack.until(lambda: len(slack.messages) == 1 and len(slack.messages[0].buttons) == 4)
        assert slack.press("Approve 1", by="U1") == 200
        slack.until(lambda: slack.told == ["You may not decide this."])
        first, second = slack.messages[0].buttons["Approve 1"], slack.messages[0].buttons["Reject 2"]
        assert slack.press("Approve 1", by="UBOSS", buttons={"Approve 1": first}) == 200
        assert slack.press("Reject 2", by="U2", buttons={"Reject 2": second}) == 200
        slack.until_shown("A-17 refunded; The call was not approved")
    assert len(refunds(tmp_path)) == 1


def test_a_long_reply_is_split_at_the_limit_and_no_part_is_lost_to_a_kill(tmp_path: Path) -> None:
    with workspace() as (slack, api):
        with slack_bot(tmp_path, slack, api) as running:
            slack.mention("tell me a long story")
            slack.until(lambda: len(slack.messages) >= 3)
            running.kill()
        with slack_bot(tmp_path, slack, api):
            slack.until(lambda: slack.messages[-1].text.endswith("The end."))
        assert turns(api) == 1
    texts = [message.text for message in slack.messages]
    assert all(len(text) <= LONGEST for text in texts)
    # The part that was being posted when the bot was killed may have been posted twice; nothing else may.
    told = list(dict.fromkeys(texts))
    assert len(texts) - len(told) <= 1
    whole = "\n\n".join(told)
    assert [f"Paragraph {number} of" in whole for number in range(1, 301)] == [True] * 300
    assert whole.count("&amp; its cable &lt;travel&gt;.") == 300


def test_a_platform_in_trouble_gets_the_answer_when_it_is_well_again(tmp_path: Path) -> None:
    with workspace() as (slack, api), slack_bot(tmp_path, slack, api):
        slack.trouble("chat.postMessage", Answer(429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "1"}))
        slack.trouble("chat.postMessage", Answer(503, {"ok": False, "error": "service_unavailable"}))
        slack.trouble("chat.update", Answer(500, {"ok": False, "error": "internal_error"}), times=2)
        slack.mention("hello")
        slack.until_shown("You said: hello")
        assert slack.requests.count("chat.postMessage") == 3
        assert turns(api) == 1


def test_an_answer_whose_message_was_deleted_is_posted_anew(tmp_path: Path) -> None:
    with workspace() as (slack, api), slack_bot(tmp_path, slack, api, SHOP_SECONDS="1.5"):
        slack.mention("pack A-17")
        slack.until_shown("packing lamp")
        slack.forget_messages()
        slack.until_shown("3 pieces packed.")
        assert turns(api) == 1


def test_a_chat_that_is_gone_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    with workspace() as (slack, api), slack_bot(tmp_path, slack, api):
        slack.trouble("chat.postMessage", Answer(200, {"ok": False, "error": "channel_not_found"}))
        slack.mention("hello")
        slack.until(lambda: "chat.postMessage" in slack.requests)
        slack.mention("anybody?", event_id="Ev2", ts="2.1")
        slack.until_shown("You said: anybody?")
        assert turns(api) == 1
