"""What the demonstration prints: steps, bars and marks; plain where the terminal is plain."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from answerback.daemon.demo.bank import Ledger
from answerback.daemon.demo.facts import After, Before, CallFact, Helper
from answerback.daemon.demo.story import CUT_SHORT, LOST

BAR = 8
"""Characters of the longest bar."""
NO = "\u2013"
"""The sign for "not"; written so, because it looks like a minus."""
MARKS = {
    **{sign: str(number) for number, sign in enumerate("①②③④⑤⑥", 1)},
    "·": "-",
    "█": "#",
    "▕": "|",
    "▏": "|",
    "✓": "yes",
    NO: "no",
    "→": "->",
}
"""What stands for each sign where the output cannot write it."""


class Picture:
    """Prints the steps as they happen; a quiet one prints nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._plain = not _can_write("".join(MARKS))

    def __repr__(self) -> str:
        return f"<Picture {'quiet' if self._quiet else 'plain' if self._plain else 'full'}>"

    def line(self, text: str = "", **style: bool | str) -> None:
        """Print one line. Colours go to terminals only, and not where NO_COLOR is set."""
        if self._quiet:
            return
        if self._plain:
            for sign, plain in MARKS.items():
                text = text.replace(sign, plain)
        click.echo(click.style(text, **style) if style and _colours() else text)  # type: ignore[arg-type] # click's options

    def step(self, mark: str, name: str, text: str, **style: bool | str) -> None:
        """Print a step of the story."""
        self.line(f"  {mark} {name:<9} {text}", **style)

    def more(self, text: str, **style: bool | str) -> None:
        """Print more about the step above."""
        self.line(f"              {text}", **style)

    def calls(self, before: Before) -> None:
        """Draw the calls as they stood when the worker was killed."""
        self.step("③", "calls", f"{len(before.calls)} function calls arrive together")
        longest = max((one.seconds or 0.0 for one in before.calls), default=0.0)
        for one in before.calls:
            self.more(f"{one.name:<13} {one.subject:<5} {_bar(one, longest)}")

    def kill(self, before: Before) -> None:
        """Say where the worker died."""
        text = f'worker {before.pid} died between "the bank paid" and "result stored" for {CUT_SHORT}'
        self.step("④", "kill -9", text, fg="red", bold=True)

    def restart(self, after: After) -> None:
        """Say what the second life found and did."""
        self.step("⑤", "restart", f"worker {after.pid} · reconciled 1 session in {after.reconciled_ms:.0f} ms")
        again = "handler run again" if LOST in after.rerun else "handler not run"
        if after.resent:
            sent = f"sent again, {'same bytes' if after.same_bytes else 'OTHER BYTES'}"
        else:
            sent = "the API had it already"
        self.more(f"refund {LOST}   stored result found   → {sent} ({again})")
        asked = f"it happened ({after.verified})" if after.verified else "it did not happen"
        again = "handler run again" if CUT_SHORT in after.rerun else "stored, sent (handler not run)"
        self.more(
            f"refund {CUT_SHORT}   started, no result    → INDETERMINATE → verify asked the bank: {asked} → {again}"
        )

    def done(self, after: After) -> None:
        """Print the model's answer."""
        self.step("⑥", "done", f'"{after.text}"')

    def ours(self, ledger: Ledger) -> None:
        """Print what the bank paid."""
        self.line(
            f"  {'ledger of the fake bank':<28} {_counted(ledger)}",
            fg="red" if ledger.duplicates else "green",
            bold=True,
        )

    def helper(self, helper: Helper) -> None:
        """Print what the bank paid when the official client's helper did the work."""
        self.line(f"  {'same run, the SDK' + chr(39) + 's helper':<28} {_counted(helper.ledger)}")
        self.more(f"openai {helper.openai}, same script, same kill; then: cancel, wait for idle, ask again")


def _counted(ledger: Ledger) -> str:
    return f"orders {ledger.orders} · refunds executed {ledger.refunds} · duplicates {ledger.duplicates}"


def _bar(one: CallFact, longest: float) -> str:
    if one.seconds is None:
        return f"▕{'█' * BAR}{'·' * 3} running"
    width = max(1, round(BAR * one.seconds / longest)) if longest else 1
    marks = f"stored {'✓' if one.stored else NO}  accepted {'✓' if one.accepted else NO}"
    return f"▕{'█' * width}▏{' ' * (BAR - width)}  {one.seconds:.2f} s   {marks}"


def _can_write(signs: Sequence[str]) -> bool:
    try:
        "".join(signs).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
