import asyncio

from pydantic import BaseModel

from backstay import Backstay, Context

app = Backstay("sqlite:///jobs.db")


class Greeting(BaseModel):
    name: str


@app.job("greet", max_attempts=3, timeout=60)
async def greet(payload: Greeting, ctx: Context) -> str:
    for done, stage in enumerate(["paper", "pen", "ink"]):
        await ctx.progress(done / 3, stage=stage)
        await asyncio.sleep(0.5)  # slow work
    return f"Hello, {payload.name}! (attempt {ctx.attempt})"


async def main() -> None:
    async with app, app.worker():  # or in a separate process: backstay worker
        job = await greet.submit(Greeting(name="Ada"), dedup_key="Ada")
        print("stored", job.job_id, flush=True)  # stored: from here on the job is never lost
        print(await job.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
