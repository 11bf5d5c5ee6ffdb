"""Long replies: every part fits, nothing but white space is lost, cuts are where a reader would make them."""

from __future__ import annotations

import importlib.util
import re
import types

from hypothesis import given
from hypothesis import strategies as st

from examples.bot_process import BOTS


def _module() -> types.ModuleType:
    # By its path: the bots' folder is on no path but that of their own processes.
    spec = importlib.util.spec_from_file_location("bots_splitting", BOTS / "common" / "splitting.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


splitting = _module()
TEXTS = st.text(st.sampled_from("ab \n&<😀é"), max_size=200)


def _utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _bare(text: str) -> str:
    return re.sub(r"\s", "", text)


@given(text=TEXTS, limit=st.integers(2, 40), size=st.sampled_from([len, _utf16]))
def test_every_part_fits_and_only_white_space_is_lost(text: str, limit: int, size: types.FunctionType) -> None:
    parts = splitting.split(text, limit, size=size)
    assert all(part.strip() and size(part) <= limit for part in parts)
    assert _bare("".join(parts)) == _bare(text)


@given(text=TEXTS, limit=st.integers(3, 40))
def test_what_is_clipped_fits_and_is_the_end(text: str, limit: int) -> None:
    clipped = splitting.clip(text, limit, size=_utf16)
    assert _utf16(clipped) <= limit
    assert text.endswith(clipped.removeprefix("…"))


def test_a_text_that_fits_is_left_as_it_is() -> None:
    assert splitting.split("  code\n\n  more", 100) == ["  code\n\n  more"]
    assert splitting.split(" \n ", 10) == []


def test_a_cut_is_at_a_paragraph_before_a_line_before_a_word_before_a_letter() -> None:
    assert splitting.split("one two\nthree\n\nfour five", 18) == ["one two\nthree", "four five"]
    assert splitting.split("one two\n  three four", 13) == ["one two", "  three four"]
    assert splitting.split("one two three", 10) == ["one two", "three"]
    assert splitting.split("abcdefghij", 4) == ["abcd", "efgh", "ij"]
