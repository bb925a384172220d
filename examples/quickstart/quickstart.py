import asyncio

from pydantic import BaseModel

from holdfast import Context, Holdfast

app = Holdfast("sqlite:///jobs.db")


class Greeting(BaseModel):
    name: str


@app.job("greet", max_attempts=3, timeout=60)
async def greet(payload: Greeting, ctx: Context) -> str:
    for done, stage in enumerate(["paper", "pen", "ink"]):
        await ctx.progress(done / 3, stage=stage)
        await asyncio.sleep(0.5)  # work that takes its time
    return f"Hello, {payload.name}! (attempt {ctx.attempt})"


async def main() -> None:
    async with app, app.worker():  # or in a process of its own: holdfast worker
        job = await greet.submit(Greeting(name="Ada"), dedup_key="Ada")
        print("stored", job.job_id, flush=True)  # from here on nothing loses it
        print(await job.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
