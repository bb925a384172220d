"""Where remote workers come to: the roster, the lines for claims, and the settling of what they did. One per server."""

from __future__ import annotations

from holdfast import keys
from holdfast.app import Holdfast
from holdfast.server.claim_tokens import ClaimTokens
from holdfast.server.claiming import Claims
from holdfast.server.roster import Roster
from holdfast.server.settling import Settling


class Desk:
    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.roster = Roster(app)
        self.claims = Claims(app)
        self.settling = Settling(app)
        self._tokens: ClaimTokens | None = None

    async def tokens(self) -> ClaimTokens:
        if self._tokens is None:
            self._tokens = ClaimTokens(await keys.server_secret(self.app.store))
        return self._tokens
