"""The application of `app.py` for blocking code: the same job, and no handler that this process would run."""

from __future__ import annotations

import os

from backstay import sync
from pydantic import BaseModel

app = sync.Backstay(os.environ["BACKSTAY_URL"])


class Note(BaseModel):
    user_id: int
    text: str


@app.job("noop")
def noop(payload: Note) -> dict[str, int]:
    return {"seen": payload.user_id}
