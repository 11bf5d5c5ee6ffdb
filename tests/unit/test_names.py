"""Names of calls on the command line: short, unambiguous, and refused with candidates when they are not."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from answerback.errors import UnknownCallError
from answerback.model import CallKey, CallRecord
from answerback.names import SHORTEST_ID, find_call, short_ids


class _Named(CallRecord, frozen=True, kw_only=True):
    """A call whose hash the test chooses: real ones never collide early enough."""

    chosen: str

    @property
    def public_id(self) -> str:
        return self.chosen


def _call(digest: str, call_id: str = "call_1") -> CallRecord:
    key = CallKey("sess_1", "turn_1", call_id)
    return _Named(key=key, name="f", arguments=b"{}", arguments_hash="", chosen=digest.ljust(64, "0"))


class _Store(msgspec.Struct, frozen=True):
    rows: tuple[CallRecord, ...]

    async def find_calls(self, prefix: str) -> list[CallRecord]:
        return [row for row in self.rows if row.public_id.startswith(prefix) or row.key.call_id == prefix][:10]


def _ids(*calls: CallRecord) -> list[str]:
    async def run() -> list[str]:
        return await short_ids(_Store(calls), calls)

    return anyio.run(run)


def test_a_short_id_has_six_digits_when_that_is_enough() -> None:
    assert _ids(_call("abcdef1"), _call("bbcdef1")) == ["abcdef", "bbcdef"]


def test_a_short_id_grows_until_it_is_alone() -> None:
    assert _ids(_call("abcdef12"), _call("abcdef13"), _call("abcdef2")) == ["abcdef12", "abcdef13", "abcdef2"]


def test_a_call_id_that_looks_like_a_hash_makes_the_id_longer_by_one_at_most() -> None:
    ids = _ids(_call("abcdef1"), _call("ffffff", call_id="abcdef"))
    assert ids[0] == "abcdef1"


@given(st.sets(st.text("ab", min_size=12, max_size=12), min_size=1, max_size=40))
def test_every_short_id_names_its_call_only(digests: set[str]) -> None:
    calls = tuple(_call(digest) for digest in sorted(digests))
    ids = _ids(*calls)
    for name, call in zip(ids, calls, strict=True):
        assert len(name) >= SHORTEST_ID
        assert [other for other in calls if other.public_id.startswith(name)] == [call]


async def test_a_call_is_found_by_prefix_in_any_case_and_by_its_call_id() -> None:
    store = _Store((_call("abcdef", "Call_A"), _call("bbbbbb", "Call_B"), _call("cccccc", "FACE")))
    assert (await find_call(store, "ABC")).key.call_id == "Call_A"
    assert (await find_call(store, "FACE")).public_id.startswith("cccccc")
    assert (await find_call(store, "Call_B")).public_id.startswith("bbbbbb")


async def test_an_unknown_name_says_where_names_are_listed() -> None:
    with pytest.raises(UnknownCallError, match="answerback calls"):
        await find_call(_Store(()), "abc")


async def test_an_ambiguous_name_lists_its_candidates() -> None:
    store = _Store((_call("abcdef1", "call_1"), _call("abcdef2", "call_2")))
    with pytest.raises(UnknownCallError) as refused:
        await find_call(store, "abcdef")
    assert "abcdef1 (f, sess_1/turn_1/call_1)" in str(refused.value)
    assert "abcdef2 (f, sess_1/turn_1/call_2)" in str(refused.value)
