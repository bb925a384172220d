"""Whether someone who was let in may stay: what stays open is asked every few seconds."""

from __future__ import annotations

from fastapi import Request

from holdfast import keys
from holdfast.errors import HoldfastError
from holdfast.server.gating.keyring import KeyRing
from holdfast.server.principals import Principal

CHECK_SECONDS = 2.0  # how often; with the age of what a server knows of keys this is within five seconds


async def may_stay(request: Request, who: Principal) -> bool:
    """A revoked key ends what it has opened, a logout what its session has, and the first key what came without."""
    ring: KeyRing = request.app.state.keyring
    try:
        known = await ring.known()
        if who.key_id is None:
            return not keys.are_needed(known.values())
        now = request.app.state.holdfast.clock.now()
        for key_id in (who.key_id, who.session_id):
            if key_id is None:
                continue
            key = known.get(key_id) or (await ring.with_one(key_id)).get(key_id)  # it may be new
            if key is None or not keys.is_live(key, now):
                return False
    except HoldfastError:
        return False  # nobody knows: whoever comes again is asked anew
    return True
