"""The application that Backstay's own worker command imports: one no-op job with a typed payload."""

from __future__ import annotations

import os

from backstay import Backstay, Context
from pydantic import BaseModel

from bench.harness.marks import Marks
from bench.harness.payload import number_of

app = Backstay(os.environ["BACKSTAY_URL"])
MARKS = Marks.from_environment()


class Note(BaseModel):
    user_id: int
    text: str


@app.job("noop")
async def noop(payload: Note, ctx: Context) -> dict[str, int]:
    MARKS.mark(number_of(payload.user_id))
    return {"seen": payload.user_id}  # a result, so that storing it is part of the measurement
