"""A bot on a web page, embedded in a Starlette app by its lifespan. One session per browser.

python web.py serves http://127.0.0.1:8322. The page asks for news every second and works without JavaScript too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from common.database import Database
from common.desk import Desk, Question, View
from common.inbox import Inbox
from common.setting import agent, approvers, open_files

HERE = Path(__file__).parent / "page"
LONGEST = 8000
BODY = 100_000
"""Bytes a request may have: the longest message in the longest encoding, and the fields beside it."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind} 'self'" for kind in ("script-src", "style-src", "connect-src", "form-action")),
        *(f"{kind} 'none'" for kind in ("frame-ancestors", "base-uri")),
    )
)
BUBBLES = """
CREATE TABLE IF NOT EXISTS bubbles (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  place TEXT NOT NULL,
  author TEXT NOT NULL,
  text TEXT NOT NULL,
  questions TEXT NOT NULL DEFAULT '[]',
  final INTEGER NOT NULL
) STRICT
"""


@dataclass(frozen=True)
class Bubble:
    """One message on the page."""

    author: str
    text: str
    questions: tuple[Question, ...]
    final: bool


class Page:
    """The page as a place where messages are shown: a table, which the browser reads."""

    limit = 4000
    pace = 0.5

    def __init__(self, database: Database) -> None:
        self._run = database.run

    def size(self, text: str) -> int:
        """Count characters."""
        return len(text)

    async def heard(self, id: str, place: str, text: str) -> None:  # noqa: A002 - as in the inbox
        """Show what the visitor said, once."""
        await self._put(id, place, "you", View(text, final=True))

    async def post(self, place: str, view: View, *, key: str) -> str:
        """Show a message; with the same key it is the same message."""
        await self._put(key, place, "bot", view)
        return key

    async def edit(self, place: str, message: str, view: View) -> None:
        """Show something else in it."""
        await self._put(message, place, "bot", view)

    async def bubbles(self, place: str) -> list[Bubble]:
        """Return the newest hundred messages of a place, in order."""
        statement = "SELECT author, text, questions, final FROM bubbles WHERE place = ? ORDER BY number DESC LIMIT 100"
        return [
            Bubble(author, text, tuple(Question(**one) for one in json.loads(questions)), bool(final))
            for author, text, questions, final in reversed(await self._run(statement, place))
        ]

    async def _put(self, id: str, place: str, author: str, view: View) -> None:  # noqa: A002 - as in the inbox
        questions = json.dumps([asdict(question) for question in view.questions])
        await self._run(
            "INSERT INTO bubbles (id, place, author, text, questions, final) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET text = excluded.text, questions = excluded.questions, final = excluded.final",
            id, place, author, view.text, questions, view.final,
        )  # fmt: skip


class Visitor:
    """Who is at the browser: a random cookie, from which everything else is derived."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.place = f"web:{self._derived('place')}"
        self.token = self._derived("token")
        """In every form; another site's page cannot know it."""

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()[:32]


def _visitor(request: Request) -> Visitor | None:
    secret = request.cookies.get("visitor", "")
    return Visitor(secret) if re.fullmatch(r"[\w-]{43}", secret) else None


templates = Jinja2Templates(HERE)


async def show(request: Request) -> Response:
    visitor = _visitor(request) or Visitor(secrets.token_urlsafe(32))
    names = {**await _names(request, visitor), "new_id": secrets.token_hex(16), "longest": LONGEST}
    response = templates.TemplateResponse(request, "page.html", names)
    secure = request.url.scheme == "https"
    response.set_cookie("visitor", visitor.secret, max_age=30 * 86400, httponly=True, samesite="strict", secure=secure)
    return response


async def log(request: Request) -> Response:
    visitor = _visitor(request)
    if visitor is None:
        return PlainTextResponse("open the page first", 403)
    response = templates.TemplateResponse(request, "log.html", await _names(request, visitor))
    version = f'"{hashlib.sha256(response.body).hexdigest()[:16]}"'
    if request.headers.get("if-none-match") == version:
        return Response(status_code=304)
    response.headers["etag"] = version
    return response


async def say(request: Request) -> Response:
    visitor, form = await _form(request)
    if visitor is None:
        return PlainTextResponse("this form is not from this page; reload it", 403)
    text, name = form.get("text", "").strip(), form.get("id", "")
    if not text or len(text) > LONGEST or not re.fullmatch(r"[\w-]{16,64}", name):
        return PlainTextResponse(f"a message has 1 to {LONGEST} characters", 422)
    desk: Desk = request.state.desk
    page: Page = request.state.page
    # The id comes with the form: sent twice, by a double click or after a lost answer, it is the same message.
    event = f"{visitor.place}:{name}"
    await page.heard(event, visitor.place, text)
    await desk.take(event, visitor.place, text)
    return _back(request)


async def decide(request: Request) -> Response:
    visitor, form = await _form(request)
    if visitor is None:
        return PlainTextResponse("this form is not from this page; reload it", 403)
    desk: Desk = request.state.desk
    call, yes = form.get("call", ""), form.get("verdict") == "yes"
    await desk.decide(visitor.place, call, yes=yes, by=visitor.place)
    return _back(request)


def _back(request: Request) -> Response:
    """Return to the page; the script, which stays on it, only wants to know that it worked."""
    asked_by_script = request.headers.get("accept") == "text/plain"
    return PlainTextResponse("ok") if asked_by_script else RedirectResponse("/", status_code=303)


async def _form(request: Request) -> tuple[Visitor | None, dict[str, str]]:
    """Read a form; without a visitor when it did not come from a page of ours."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY:
            return None, {}
    form = dict(parse_qsl(body.decode(errors="replace")))
    visitor = _visitor(request)
    genuine = visitor is not None and hmac.compare_digest(form.get("token", "").encode(), visitor.token.encode())
    return (visitor if genuine else None), form


async def _names(request: Request, visitor: Visitor) -> dict[str, Any]:
    page: Page = request.state.page
    return {"bubbles": await page.bubbles(visitor.place), "token": visitor.token}


async def _protected(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers["content-security-policy"] = POLICY
    response.headers["referrer-policy"] = "same-origin"
    response.headers["x-content-type-options"] = "nosniff"
    response.headers.setdefault("cache-control", "no-store")
    return response


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[dict[str, Any]]:
    """Run the runtime and the desk for as long as the app is served."""
    async with open_files("web", BUBBLES) as (runtime, database):
        page = Page(database)
        desk = Desk(runtime, page, Inbox(database), agent=agent(), approvers=approvers())
        async with desk.open():
            yield {"desk": desk, "page": page}


def create_app() -> Starlette:
    """Build the app; WEB_HOSTS names the hosts it answers to, beside this machine's own."""
    hosts = ["127.0.0.1", "localhost", *filter(None, os.environ.get("WEB_HOSTS", "").split(","))]
    return Starlette(
        routes=[
            Route("/", show),
            Route("/log", log),
            Route("/say", say, methods=["POST"]),
            Route("/decide", decide, methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        # Another site's name that leads here (DNS rebinding) is not answered.
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(BaseHTTPMiddleware, dispatch=_protected),
        ],
        lifespan=lifespan,
    )


if __name__ == "__main__":
    place, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8322"))
    print(f"open http://{place}:{port}", flush=True)
    uvicorn.run(create_app(), host=place, port=port, log_level="warning")
