"""A bot in a terminal: one line in, one answer out. Kill it at any moment and start it again.

    python terminal.py                      talk; the conversation is named by --name
    python terminal.py --resume < lines     a file of questions; killed and run again, it goes on where it was

A question of the agent is answered with `/yes ID` or `/no ID`; Ctrl-D ends.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys

import anyio
import anyio.lowlevel

from answerback import StoreLockedError
from common.desk import Desk, View
from common.setting import open_desk
from common.sketch import THINKING

PLACE = "terminal:{name}"


class Screen:
    """The terminal as a place where messages are shown. What is printed stays, so an edit prints what is new."""

    limit = 100_000
    pace = 0.25

    def __init__(self) -> None:
        self.told: set[str] = set()
        """The questions that were printed."""
        self._line = ""

    def size(self, text: str) -> int:
        """Count characters; a terminal takes any number of them."""
        return len(text)

    async def post(self, place: str, view: View, *, key: str) -> str:
        """Print a part of an answer; the message that shows the way there is posted empty."""
        if view.final:
            print(view.text, flush=True)
        return key

    async def edit(self, place: str, message: str, view: View) -> None:
        """Print the answer, or what is new on the way to it."""
        if view.final:
            print(view.text, flush=True)
            return
        line = view.text.splitlines()[-1]
        # What is still being written would be printed over and over; what handlers say is short.
        if line not in {self._line, THINKING} and not view.writing:
            print(f"  · {line}", flush=True)
            self._line = line
        for question in view.questions:
            if question.call not in self.told:
                self.told.add(question.call)
                name = question.call[:8]
                print(f"  ? {question.text}\n    /yes {name}   or   /no {name}", flush=True)


class Keyboard:
    """Lines of the standard input, without a thread that would hold the process up at its end."""

    def __init__(self) -> None:
        self._rest = b""
        self._over = False

    async def line(self) -> str | None:
        """Return the next line, or None after the last one."""
        while b"\n" not in self._rest and not self._over:
            try:
                await anyio.wait_readable(sys.stdin)
            except PermissionError:
                await anyio.lowlevel.checkpoint()  # a file: always readable, and not to be waited for
            chunk = os.read(sys.stdin.fileno(), 65536)
            self._over = not chunk
            self._rest += chunk
        if not self._rest:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace").strip()


async def talk(desk: Desk, keyboard: Keyboard, place: str, *, resume: bool) -> None:
    """Hand every line to the desk until there are no more."""
    number = 0
    while (line := await keyboard.line()) is not None:
        number += 1
        command, _, call = line.partition(" ")
        if command in {"/yes", "/no"}:
            print(await desk.decide(place, call.strip(), yes=command == "/yes", by=os.environ.get("USER", "somebody")))
        elif line:
            # Lines of a file are known by their number, so a second run of the file asks none of them again.
            key = f"{place}:line:{number}" if resume else f"{place}:{secrets.token_hex(8)}"
            await desk.take(key, place, line)


async def main(name: str, *, resume: bool) -> None:
    if sys.stdin.isatty():
        print("Say something. Ctrl-D ends.")
    screen, place = Screen(), PLACE.format(name=name)
    async with open_desk(f"terminal-{name}", screen) as desk:
        await talk(desk, Keyboard(), place, resume=resume)
        await settle(desk, screen, place)


async def settle(desk: Desk, screen: Screen, place: str) -> None:
    """Wait until everything is answered, or until nobody is left to answer a question."""
    while desk.busy:
        asked = await desk.questions(place)
        if asked and screen.told.issuperset(question.call for question in asked):
            print("A question is open. Start me again to answer it.")
            return
        await anyio.sleep(screen.pace)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="me", help="the conversation (default: me)")
    parser.add_argument("--resume", action="store_true", help="the input is a file that may have been begun before")
    given = parser.parse_args()
    if not re.fullmatch(r"[\w.-]+", given.name):
        parser.error("a name is made of letters, digits and . _ -")
    try:
        anyio.run(lambda: main(given.name, resume=given.resume))
    except StoreLockedError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        print()
