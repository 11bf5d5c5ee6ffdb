"""A server-sent events reader that survives what real streams carry.

It is ours, and not `httpx2.EventSource`, because that one loses a frame behind a byte order mark and caps an event at
1 MiB, and the official client's decoder ends the stream with a JSON error at a lone `retry:`, an empty `data:` or a
comment after an `id:` line. Here anything but data is passed over. No I/O: bytes in, payloads out.
"""

from __future__ import annotations

import codecs

from answerback.errors import AnswerbackError

MAX_FRAME = 256 * 1024 * 1024
"""Bytes one frame may have; a session snapshot with large tools is a few MiB, the service's frames exceeded 64 MiB."""


class FrameTooLargeError(AnswerbackError):
    """Raised when one frame exceeds `MAX_FRAME`; the stream is to be closed and the session read again."""


class SSEDecoder:
    """Cut a byte stream into the `data` payloads of its frames.

    Line ends may be CR, LF or CRLF and may be cut anywhere between two chunks. `event:`, `id:`, `retry:` and comments
    carry nothing for us (the payload names its own type, there is no replay). A frame without its closing blank line
    is incomplete and is dropped with the decoder, as the standard says.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._start: bytes = b""
        self._started = False
        self._after_cr: bool = False

    def __repr__(self) -> str:
        return f"<SSEDecoder {self._size} bytes of a frame waiting>"

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; return the payloads (JSON text, never empty) of the frames they complete.

        Raises:
            FrameTooLargeError: a frame grew over `MAX_FRAME`.
        """
        if not self._started:
            chunk = self._start + chunk
            if len(chunk) < len(codecs.BOM_UTF8) and codecs.BOM_UTF8.startswith(chunk):
                self._start = chunk
                return []
            self._started = True
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        if self._after_cr and chunk:
            # The CR closed its line already; a LF right behind it is the other half of the same line end.
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        # Only the new bytes are searched: a frame of many MiB arrives in thousands of chunks.
        head, *lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._partial.append(head)
        self._size += len(chunk)
        payloads: list[bytes] = []
        for line in lines:
            payload = self._take(b"".join(self._partial))
            self._partial = [line]
            if payload is not None:
                payloads.append(payload)
        if self._size > MAX_FRAME:
            raise FrameTooLargeError(
                f"a stream frame is larger than {MAX_FRAME} bytes; the session is read by retrieve instead"
            )
        return payloads

    def _take(self, line: bytes) -> bytes | None:
        """Take one line without its end; return a payload when it is the blank line that closes a frame."""
        if line.startswith(b"data:"):
            value = line[5:]
            self._data.append(value[1:] if value.startswith(b" ") else value)
            return None
        if line == b"data":
            self._data.append(b"")
            return None
        if line:
            return None
        payload = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return payload if payload.strip() else None
