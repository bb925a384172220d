"""Handlers as the scheduled queue wrote them, its base class and its dictionary included: they run unchanged."""

from pathlib import Path
from typing import Any, Type  # noqa: UP035 - as it was written there

import pytest
from pydantic import BaseModel

from backstay import Backstay, InvalidPayload
from backstay.testing import drain, throwaway_url


class BaseJobHandler:
    @classmethod
    def payload_model(cls) -> Type[BaseModel]: ...  # noqa: UP006

    def handle(self, payload: BaseModel) -> None: ...


class DailySummaryPayload(BaseModel):
    user_id: str


class UserSyncPayload(BaseModel):
    user_id: str
    full: bool = False


handled: list[BaseModel] = []


class DailySummaryHandler(BaseJobHandler):
    @classmethod
    def payload_model(cls) -> Type[BaseModel]:  # noqa: UP006
        return DailySummaryPayload

    def handle(self, payload: BaseModel) -> None:
        handled.append(payload)


class UserSyncHandler(BaseJobHandler):
    @classmethod
    def payload_model(cls) -> Type[BaseModel]:  # noqa: UP006
        return UserSyncPayload

    def handle(self, payload: UserSyncPayload) -> None:  # type: ignore[override]  # the narrower model
        handled.append(payload)


job_handlers = {
    "daily_summary": DailySummaryHandler,
    "user_sync": UserSyncHandler,
}


@pytest.mark.parametrize("of", [lambda handler: handler, lambda handler: handler()], ids=["classes", "objects"])
async def test_handlers_as_the_scheduled_queue_wrote_them_run_unchanged(tmp_path: Path, of: Any) -> None:
    handled.clear()
    app = Backstay(throwaway_url(tmp_path))
    for name, handler in job_handlers.items():
        app.job(name)(of(handler))
    async with app:
        await app.submit("daily_summary", {"user_id": "ada"}, priority="high")
        await app.submit("user_sync", {"user_id": "ada", "full": True})
        with pytest.raises(InvalidPayload, match="payload of user_sync: user_id"):
            await app.submit("user_sync", {})
        assert {job.status for job in await drain(app)} == {"completed"}
    assert handled == [DailySummaryPayload(user_id="ada"), UserSyncPayload(user_id="ada", full=True)]
