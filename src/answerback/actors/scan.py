"""Read a list of sessions in bounded portions: the newest page every time, the older ones in turn.

The API has no list of changes. Its list of sessions goes from the newest to the oldest and can be filtered by exact
metadata; a filtered list may show a new session late, and only a later reading will tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from answerback.actors.api import AgentsApi
from answerback.errors import ApiError
from answerback.wire.records import Page, Session

PAGES = 10
"""Pages of 100 sessions in one reading; of a longer list every session is seen once in several readings."""


class SessionScan:
    """Reads one list again and again.

    Args:
        api: the HTTP edge.
        metadata: pairs a session must have.
        agent_id: the agent it must run.
        pages: requests one reading may make.
    """

    def __init__(
        self, api: AgentsApi, *, metadata: Mapping[str, str], agent_id: str | None = None, pages: int = PAGES
    ) -> None:
        self._api = api
        self._metadata = dict(metadata)
        self._agent_id = agent_id
        self._pages = pages
        self._next: str | None = None

    def __repr__(self) -> str:
        return f"<SessionScan {len(self._metadata)} pairs, {'from the top' if self._next is None else 'under way'}>"

    async def read(self, wanted: Callable[[Session], bool]) -> list[Session]:
        """Return the sessions of this portion that are wanted.

        A server that does not know the filter must not cost anybody a session, so what it lists is checked here.

        Raises:
            ApiError: the list could not be read; the next reading begins where this one did.
        """
        page = await self._page(None)
        found = [session for session in page.data if self._matches(session) and wanted(session)]
        after = self._next or _cursor(page)
        for _ in range(self._pages - 1):
            if after is None or not page.has_more:
                break
            try:
                page = await self._page(after)
            except ApiError as error:
                if error.status not in {400, 404}:
                    raise
                # The session that was the cursor is gone: begin at the top again.
                after = None
                break
            found += [session for session in page.data if self._matches(session) and wanted(session)]
            after = _cursor(page)
        self._next = after if page.has_more else None
        return found

    async def _page(self, after: str | None) -> Page[Session]:
        return await self._api.sessions(metadata=self._metadata, agent_id=self._agent_id, after=after)

    def _matches(self, session: Session) -> bool:
        has = session.metadata or {}
        if any(has.get(name) != value for name, value in self._metadata.items()):
            return False
        return self._agent_id is None or session.agent is None or session.agent.id in {None, self._agent_id}


def _cursor(page: Page[Session]) -> str | None:
    return page.last_id or (page.data[-1].id if page.data else None)
