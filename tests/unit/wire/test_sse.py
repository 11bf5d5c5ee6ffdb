"""The reader of an event stream takes everything real streams carry, cut anywhere, and never more work than bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answerback.wire import sse
from answerback.wire.sse import FrameTooLargeError, SSEDecoder

BOM = b"\xef\xbb\xbf"
ENDS = [b"\n", b"\r", b"\r\n"]


def read(*chunks: bytes) -> list[bytes]:
    decoder = SSEDecoder()
    return [payload for chunk in chunks for payload in decoder.feed(chunk)]


def cuts(stream: bytes) -> Iterable[Sequence[bytes]]:
    """Every way to cut the stream in two, and the stream byte by byte."""
    for at in range(len(stream) + 1):
        yield stream[:at], stream[at:]
    yield [stream[at : at + 1] for at in range(len(stream))]


def test_control_frames_and_pings_do_not_end_or_hide_anything() -> None:
    stream = (
        b"retry: 3000\n\n"
        b'id: 7\ndata: {"n":1}\n\n'
        b": ping\n\n"
        b"event: ping\n\n"
        b"data:\n\n"
        b": ping\n\n"
        b'event: x\ndata: {"n":2}\n\n'
    )
    assert read(stream) == [b'{"n":1}', b'{"n":2}']


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", [b"", BOM])
def test_line_ends_and_a_byte_order_mark_may_be_cut_anywhere(start: bytes, end: bytes) -> None:
    lines = [b"id: 7", b'data: {"n":1}', b"", b": ping", b"", b"retry: 1", b"data:", b"", b'data: {"n":2}', b"", b""]
    for chunks in cuts(start + end.join(lines)):
        assert read(*chunks) == [b'{"n":1}', b'{"n":2}'], chunks


def test_line_ends_of_all_kinds_may_be_mixed() -> None:
    for chunks in cuts(b'data: {"n":1}\r\n\ndata: {"n":2}\n\rdata: {"n":3}\r\r\ndata: {"n":4}\r\r'):
        assert read(*chunks) == [b'{"n":1}', b'{"n":2}', b'{"n":3}', b'{"n":4}'], chunks


def test_a_frame_is_given_as_soon_as_its_carriage_return_is_there() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: 1\r\r") == [b"1"]
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: 2\n\n") == [b"2"]


def test_empty_chunks_change_nothing() -> None:
    assert read(b"", BOM[:1], b"", BOM[1:], b"", b"data: 1\r", b"", b"\n", b"", b"\n") == [b"1"]


def test_a_byte_order_mark_counts_at_the_very_start_only() -> None:
    assert read(b"data: 1\n\n" + BOM + b"data: 2\n\ndata: 3\n\n") == [b"1", b"3"]
    assert read(BOM + BOM + b"data: 1\n\ndata: 2\n\n") == [b"2"]


def test_a_start_that_only_looks_like_a_byte_order_mark_is_kept() -> None:
    assert read(BOM[:1], b"\ndata: 1\n\n") == [b"1"]
    assert read(BOM[:2], b"data: 0\n\ndata: 1\n\n") == [b"1"]


def test_a_payload_of_several_lines_is_joined_by_newlines() -> None:
    assert read(b'data: {\ndata:   "a":1\ndata:}\n\n') == [b'{\n  "a":1\n}']


@pytest.mark.parametrize(
    ("line", "payload"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data:  x", b" x"),
        (b"data: x ", b"x "),
        (b"data:\tx", b"\tx"),
        (b"data: data: x", b"data: x"),
        (b"data: [DONE]", b"[DONE]"),
    ],
)
def test_one_space_after_the_colon_belongs_to_the_format(line: bytes, payload: bytes) -> None:
    assert read(line + b"\n\n") == [payload]


@pytest.mark.parametrize(
    "line",
    [
        b"data",
        b"data:",
        b"data: ",
        b"data:  ",
        b"id: 1",
        b"id",
        b"event: x",
        b"retry: 5",
        b": x",
        b":",
        b"dat: x",
        b"Data: x",
    ],
)
def test_a_frame_without_content_is_no_frame(line: bytes) -> None:
    assert read(line + b"\n\ndata: 1\n\n") == [b"1"]


def test_blank_lines_alone_are_no_frames() -> None:
    assert read(b"\n\n\r\r\r\n\r\n") == []


def test_nothing_of_one_frame_leaks_into_the_next() -> None:
    assert read(b"data: 1\nid: 1\n\nid: 2\n\n: c\n\ndata: 2\n\n") == [b"1", b"2"]


@pytest.mark.parametrize("tail", [b'data: {"n":2}', b'data: {"n":2}\n', b"data", b": ping\n", b"data: 2\r"])
def test_an_unterminated_last_frame_is_not_given(tail: bytes) -> None:
    assert read(b'data: {"n":1}\n\n' + tail) == [b'{"n":1}']


def test_the_end_marker_of_other_apis_does_not_end_the_reading() -> None:
    assert read(b"data: [DONE]\n\ndata: 1\n\n") == [b"[DONE]", b"1"]


def test_the_state_says_how_much_waits() -> None:
    decoder = SSEDecoder()
    decoder.feed(b"data: 1\n")
    assert repr(decoder) == "<SSEDecoder 8 bytes of a frame waiting>"
    decoder.feed(b"\n")
    assert repr(decoder) == "<SSEDecoder 0 bytes of a frame waiting>"


LINES = st.lists(
    st.sampled_from(
        [b"data: a", b"data:b", b"data", b"data:", b"", b"", b": c", b"id: 1", b"retry: 1", b"event: e", b"x"]
    )
    | st.binary(max_size=6).map(lambda raw: b"data: " + raw.replace(b"\r", b"").replace(b"\n", b"")),
    max_size=12,
)


@given(st.lists(st.tuples(LINES, st.sampled_from(ENDS)), max_size=3), st.lists(st.integers(0, 40), max_size=8))
def test_where_the_bytes_are_cut_makes_no_difference(parts: list[tuple[list[bytes], bytes]], sizes: list[int]) -> None:
    stream = b"".join(line + end for lines, end in parts for line in lines)
    chunks: list[bytes] = []
    rest = stream
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    assert read(*chunks, rest) == read(stream)


@given(st.binary(max_size=80))
def test_no_bytes_raise_and_no_payload_is_blank(stream: bytes) -> None:
    assert all(payload.strip() for payload in read(stream))


# --- large frames ---------------------------------------------------------------------------------------------------


class _Counted(bytes):
    """Bytes that count how many of them every look at them and every copy of them costs."""

    work = 0

    def _counted(self, made: bytes) -> _Counted:
        type(self).work += len(self)
        return _Counted(made)

    def replace(self, *args: Any) -> _Counted:
        return self._counted(super().replace(*args))

    def split(self, sep: Any = None, maxsplit: Any = -1) -> list[bytes]:
        return [self._counted(part) for part in super().split(sep, maxsplit)]

    def removeprefix(self, prefix: Any) -> _Counted:
        return self._counted(super().removeprefix(prefix))

    def __getitem__(self, index: Any) -> Any:
        return self._counted(cast("bytes", bytes(self)[index]))

    def __add__(self, other: Any) -> _Counted:
        return self._counted(super().__add__(other))

    def __radd__(self, other: Any) -> _Counted:
        return self._counted(other + bytes(self))


def _work(size: int, chunk: int) -> int:
    """Feed one frame in chunks; return the bytes looked at or copied, and check that waiting pieces stay untouched."""
    stream = b"data: " + b"x" * size
    _Counted.work = 0
    decoder = SSEDecoder()
    for at in range(0, len(stream), chunk):
        waiting = list(decoder._partial)
        assert decoder.feed(_Counted(stream[at : at + chunk])) == []
        # The same objects, so nothing that came earlier was copied to make room for what came now.
        kept = decoder._partial[: len(waiting)]
        assert [id(piece) for piece in kept] == [id(piece) for piece in waiting]
    assert [len(payload) for payload in decoder.feed(b"\n\n")] == [size]
    return _Counted.work


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_frame_twice_as_large_costs_twice_the_work(chunk: int) -> None:
    once, twice = _work(20 * chunk * 10, chunk), _work(40 * chunk * 10, chunk)
    assert twice <= 2.2 * once
    assert twice <= 8 * 40 * chunk * 10


def test_a_frame_may_have_many_lines() -> None:
    assert read(*[b"data: x\n"] * 5000, b"\n") == [b"\n".join([b"x"] * 5000)]


def test_a_frame_of_several_megabytes_arrives_whole() -> None:
    body = b"y" * (3 << 20)
    stream = b"data: " + body + b"\n\ndata: 2\n\n"
    assert read(*(stream[at : at + 65536] for at in range(0, len(stream), 65536))) == [body, b"2"]


def test_a_frame_over_the_limit_is_refused_and_one_at_the_limit_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_FRAME", 20)
    assert read(b"data: 56789012345678", b"\n\n") == [b"56789012345678"]
    decoder = SSEDecoder()
    decoder.feed(b"data: 56789012345678")
    with pytest.raises(FrameTooLargeError, match="20 bytes"):
        decoder.feed(b"9")


def test_many_frames_together_may_exceed_the_limit_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_FRAME", 20)
    decoder = SSEDecoder()
    for _ in range(100):
        assert decoder.feed(b": ping\n\ndata: 1\n\n") == [b"1"]
