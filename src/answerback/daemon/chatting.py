"""A conversation in the terminal, through the daemon that owns the session."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from answerback.daemon.exits import RemoteError, StartError
from answerback.daemon.journal import read
from answerback.daemon.output import print_json_line
from answerback.daemon.remote import Remote, path_of
from answerback.daemon.writing import session_of, who
from answerback.model import CallState

Entry = dict[str, Any]
PROMPT = "> "


class Screen:
    """What a person sees, or one JSON object a line."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._shown = ""
        self.interactive = sys.stdin.isatty() and not as_json

    def __repr__(self) -> str:
        return f"<Screen {'json' if self._as_json else 'text'}>"

    def line(self) -> str | None:
        """Return the next line that is typed, or None at the end."""
        if not self.interactive:
            # An empty line has its line end; the end of a pipe has not.
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        try:
            return input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return None

    def delta(self, text: str) -> None:
        """Show the next piece of an answer."""
        self._shown += text
        if self._as_json:
            print_json_line({"type": "delta", "text": text})
        else:
            click.echo(text, nl=False)

    def turn(self, facts: Entry) -> None:
        """Show how a turn ended; what was shown piece by piece is not shown again."""
        shown, self._shown = self._shown, ""
        if self._as_json:
            print_json_line({"type": "turn", **facts})
            return
        text = str(facts["output_text"])
        click.echo("" if shown and shown.endswith(text) else f"\n{text}" if shown else text)
        if facts["status"] != "completed":
            click.echo(f"[the turn {facts['status']}{': ' + str(facts['error']) if facts['error'] else ''}]")

    def approval(self, call: Entry, *, values: bool) -> None:
        """Show a call that waits for a yes."""
        if self._as_json:
            print_json_line({"type": "approval", "call": call})
            return
        asked = f" with {call['arguments']}" if values else f"; its arguments: answerback show {call['id']} --values"
        click.echo(f"\n[{call['name']} waits for your approval{asked}]")
        if not self.interactive:
            click.echo(f"[answerback approve {call['id']}, or answerback reject {call['id']}]")

    def note(self, text: str) -> None:
        """Show something that is no answer."""
        if self._as_json:
            print_json_line({"type": "note", "text": text})
        else:
            click.echo(f"[{text}]")


class Chat:
    """One chat. Threads read what comes; this one types, prints and decides.

    Args:
        daemon: who has the session.
        name: the session, by id or key.
        screen: where it is shown.
        store: the store file, to read what an approval is about.
        values: whether arguments are shown.
    """

    def __init__(self, daemon: Remote, name: str, *, screen: Screen, store: Path, values: bool) -> None:
        self._daemon = daemon
        self._name = name
        self._screen = screen
        self._store = store
        self._values = values
        self._session_id = ""
        self._asked: set[str] = set()
        self._news: queue.Queue[tuple[str, Any]] = queue.Queue()

    def __repr__(self) -> str:
        return f"<Chat {self._session_id or self._name}>"

    def run(self) -> None:
        """Talk until the input ends.

        Raises:
            RemoteError: the daemon refused the session.
            StartError: the daemon ended.
        """
        known = read(self._store, lambda reader: session_of(reader, self._name))
        if known is not None and known.session_id is not None:
            self._listen(known.session_id)
            self._ask_for_approvals()
        while (line := self._screen.line()) is not None:
            if line.strip():
                self._turn(line)

    def _listen(self, session_id: str) -> None:
        """Follow the session from now on; returns once nothing that comes is missed."""
        self._session_id = session_id
        listening = [threading.Event(), threading.Event()]
        paths = (path_of("sessions", session_id, "events"), "/events")
        for path, heard, ready in zip(paths, (self._event, self._move), listening, strict=True):
            threading.Thread(target=self._follow, args=(path, heard, ready), daemon=True).start()
        for ready in listening:
            ready.wait()

    def _turn(self, text: str) -> None:
        """Send a message and show what comes until its turn is over."""
        if not self._session_id:
            # A session begins with its first message, and only then has an id to follow.
            created = self._daemon.post("/sessions", {"key": self._name, "text": text})
            self._listen(created["session"]["session_id"])
            self._in_background("wait", {})
            # It may have asked for one before it was followed.
            self._news.put(("approval", None))
        else:
            self._in_background("messages", {"text": text})
        while True:
            try:
                kind, news = self._news.get()
            except KeyboardInterrupt:
                self._daemon.post(path_of("sessions", self._session_id, "cancel"))
                self._screen.note("the server was asked to cancel the turn")
                continue
            match kind:
                case "delta":
                    self._screen.delta(news)
                case "approval":
                    self._ask_for_approvals()
                case "turn":
                    self._screen.turn(news)
                    return
                case _:
                    raise news

    def _in_background(self, verb: str, body: Entry) -> None:
        threading.Thread(target=self._ask_for_turn, args=(verb, body), daemon=True).start()

    def _ask_for_turn(self, verb: str, body: Entry) -> None:
        try:
            # A turn may take as long as a person takes to approve what it asks for.
            path = path_of("sessions", self._session_id, verb)
            self._news.put(("turn", self._daemon.post(path, body, timeout=None)))
        except (RemoteError, StartError) as error:
            self._news.put(("error", error))

    def _follow(self, path: str, heard: Callable[[Entry], None], ready: threading.Event) -> None:
        try:
            with self._daemon.follow(path) as entries:
                ready.set()
                for entry in entries:
                    heard(entry)
        except (RemoteError, StartError) as error:
            self._news.put(("error", error))
        finally:
            ready.set()

    def _event(self, entry: Entry) -> None:
        if entry["delta"] and str(entry["type"]).endswith("output_text.delta"):
            self._news.put(("delta", entry["delta"]))

    def _move(self, entry: Entry) -> None:
        ours = entry.get("type") == "call" and entry["session_id"] == self._session_id
        if ours and entry["state"] == CallState.WAITING_APPROVAL.value:
            self._news.put(("approval", None))

    def _ask_for_approvals(self) -> None:
        """Show the calls that wait and were not shown yet, and pass on the answers of whoever sits here."""
        query = "?values=1" if self._values else ""
        waiting: list[Entry] = self._daemon.get(path_of("sessions", self._session_id, "approvals") + query)["calls"]
        for call in waiting:
            if call["hash"] in self._asked:
                continue
            self._asked.add(call["hash"])
            self._screen.approval(call, values=self._values)
            if self._screen.interactive:
                self._decide(call)

    def _decide(self, call: Entry) -> None:
        verb = "approve" if click.confirm("[approve?]", default=False) else "reject"
        try:
            self._daemon.post(path_of("calls", call["hash"], verb), {"by": who()})
        except RemoteError as error:
            # Somebody else was faster; what they said counts.
            self._screen.note(str(error))
