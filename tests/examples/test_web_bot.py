"""The web bot as a browser sees it: sent twice, killed, asked, long, and forms that are not its own."""

from __future__ import annotations

import html
import re
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from time import monotonic

import httpx2

from example_run import PATIENCE, LocalApi, local_api
from examples.bot_process import SCRIPT, Bot, bot, refunds, turns


class Browser:
    """One browser: its cookie, and the page it has open."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http
        # Asked until it is there: the process says where it will be before it listens.
        _eventually(self._open)

    def _open(self) -> bool:
        try:
            self.page = self.http.get("/").text
        except httpx2.ConnectError:
            return False
        return True

    def field(self, name: str, text: str) -> list[str]:
        return re.findall(rf'name="{name}" value="([^"]+)"', text)

    def say(self, text: str, *, name: str = "a" * 16, token: str | None = None) -> int:
        """Send the form; by its own fields unless told otherwise."""
        token = self.field("token", self.page)[0] if token is None else token
        return self.http.post("/say", data={"token": token, "id": name, "text": text}).status_code

    def decide(self, verdict: str, call: str) -> int:
        token = self.field("token", self.page)[0]
        return self.http.post("/decide", data={"token": token, "call": call, "verdict": verdict}).status_code

    def bubbles(self) -> list[tuple[str, str]]:
        """Return what the page shows: author and text."""
        found = re.findall(r'<article class="([\w ]+)">\s*<p>(.*?)</p>', self.log(), re.DOTALL)
        return [(author, html.unescape(text)) for author, text in found]

    def log(self) -> str:
        return self.http.get("/log").text

    def until(self, predicate: Callable[[list[tuple[str, str]]], bool]) -> list[tuple[str, str]]:
        """Ask as the page does until it shows this."""
        _eventually(lambda: predicate(self.bubbles()))
        return self.bubbles()

    def until_asked(self) -> list[str]:
        """Return the names of the open questions once there are some."""
        _eventually(lambda: bool(self.field("call", self.log())))
        return self.field("call", self.log())


class Site:
    """A running web bot and the browsers at it."""

    def __init__(self, running: Bot, stack: ExitStack) -> None:
        self.bot = running
        self.url = running.greeting.removeprefix("open ")
        self._stack = stack

    def browser(self, cookies: httpx2.Cookies | None = None) -> Browser:
        """Open the page, as a new visitor or as one who was here before."""
        client = httpx2.Client(base_url=self.url, timeout=10, cookies=cookies)
        return Browser(self._stack.enter_context(client))


def _eventually(predicate: Callable[[], bool]) -> None:
    # A page is asked again and again: that is how this bot's page learns what is new.
    end, never = monotonic() + PATIENCE, Event()
    while not predicate():
        assert monotonic() < end
        never.wait(0.05)


@contextmanager
def web_bot(folder: Path, api: LocalApi, **environment: str) -> Generator[Site]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # uvicorn closes everything in order, and then ends by the signal it was sent.
    with bot("web", folder, api, {"PORT": port, **environment}, ends=-signal.SIGTERM) as running, ExitStack() as stack:
        yield Site(running, stack)


def test_a_form_sent_twice_is_answered_once_and_browsers_do_not_see_each_other(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api, web_bot(tmp_path, api) as site:
        ada, grace = site.browser(), site.browser()
        assert [ada.say("<b>hello</b>"), ada.say("<b>hello</b>")] == [303, 303]
        assert ada.until(lambda shown: ("bot", "You said: <b>hello</b>") in shown) == [
            ("you", "<b>hello</b>"),
            ("bot", "You said: <b>hello</b>"),
        ]
        assert "<b>" not in ada.log()
        assert ada.say("more", name="b" * 16) == 303
        ada.until(lambda shown: ("bot", "You said: more") in shown)
        assert grace.bubbles() == []
        assert (len(api.sessions()), turns(api)) == (1, 2)


def test_a_killed_bot_shows_the_page_as_it_was_and_goes_on_in_the_same_message(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api:
        with web_bot(tmp_path, api, SHOP_SECONDS="1.5") as site:
            ada = site.browser()
            ada.say("pack A-17")
            ada.until(lambda shown: shown[1:] == [("bot draft", "packing lamp (1 of 3)")])
            site.bot.kill()
        with web_bot(tmp_path, api) as site:
            ada = site.browser(ada.http.cookies)
            ada.until(lambda shown: shown == [("you", "pack A-17"), ("bot", "3 pieces packed.")])
            assert ada.say("pack A-17") == 303
            assert len(ada.bubbles()) == 2
        assert turns(api) == 1


def test_a_refund_waits_for_its_visitor_and_is_paid_once(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api, web_bot(tmp_path, api) as site:
        ada, eve = site.browser(), site.browser()
        ada.say("refund A-18")
        (call,) = ada.until_asked()
        assert "May I run refund(order_id=&#34;A-18&#34;, cents=9900)?" in ada.log()
        eve.say("hello")
        eve.decide("yes", call)
        assert refunds(tmp_path) == []
        assert [ada.decide("yes", call), ada.decide("no", call)] == [303, 303]
        ada.until(lambda shown: shown[-1] == ("bot", "A-18 refunded"))
        assert ada.field("call", ada.log()) == []
    assert len(refunds(tmp_path)) == 1


def test_a_long_reply_comes_in_several_messages(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api, web_bot(tmp_path, api) as site:
        ada = site.browser()
        ada.say("tell me a long story")
        shown = ada.until(lambda shown: shown[-1][1].endswith("The end."))
    assert len(shown) > 4
    assert all(len(text) <= 4000 for _, text in shown)
    assert "\n\n".join(text for _, text in shown[1:]).count("& its cable <travel>.") == 300


def test_only_its_own_page_can_speak_for_a_visitor(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api, web_bot(tmp_path, api) as site:
        ada, eve = site.browser(), site.browser()
        assert ada.say("hello", token="guessed") == 403
        assert ada.say("hello", token=eve.field("token", eve.page)[0]) == 403
        assert httpx2.post(f"{site.url}/say", data={"text": "hello"}).status_code == 403
        assert httpx2.get(f"{site.url}/log").status_code == 403
        assert ada.http.get("/", headers={"host": "elsewhere.example"}).status_code == 400
        assert ada.say("x" * 8001) == 422
        assert ada.say("x" * 200_000) == 403
        cookie = httpx2.get(site.url).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        assert "script-src 'self'" in ada.http.get("/").headers["content-security-policy"]
        assert turns(api) == 0


def test_the_page_is_sent_again_only_when_something_is_new(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api, web_bot(tmp_path, api) as site:
        ada = site.browser()
        version = ada.http.get("/log").headers["etag"]
        assert ada.http.get("/log", headers={"if-none-match": version}).status_code == 304
        ada.say("hello")
        assert ada.http.get("/log", headers={"if-none-match": version}).status_code == 200
        assert ada.http.get("/static/bot.js").status_code == 200
