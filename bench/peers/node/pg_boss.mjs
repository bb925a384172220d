import * as module from 'pg-boss'
import { drive, mark } from './driver.mjs'

const PgBoss = module.PgBoss ?? module.default
const LOOPS = 2
const options = { batchSize: 5_000, pollingIntervalSeconds: 0.5 } // as often as it lets one
const boss = new PgBoss(process.env.BENCH_POSTGRES_URL)
boss.on('error', () => {})

async function open () {
  await boss.start()
  await boss.createQueue('noop')
}

await drive({
  open,
  close: () => boss.stop({ graceful: false }),
  submit: (payload) => boss.send('noop', payload),
  submitMany: (payloads) => boss.insert(payloads.map((data) => ({ name: 'noop', data }))),
  work: async () => {
    await open()
    for (let loop = 0; loop < LOOPS; loop++) {
      await boss.work('noop', options, async (jobs) => { for (const job of jobs) mark(job.data) })
    }
  }
})
