import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import { drive, mark } from './driver.mjs'

const connectionString = process.env.BENCH_POSTGRES_URL
const logger = new Logger(() => () => {})
const worker = {
  connectionString,
  concurrentJobs: 24,
  maxPoolSize: 10,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0
}
let utilities

await drive({
  open: async () => {
    utilities = await makeWorkerUtils({ connectionString, logger })
    await utilities.migrate()
  },
  close: () => utilities.release(),
  submit: (payload) => utilities.addJob('noop', payload),
  submitMany: (payloads) => utilities.addJobs(payloads.map((payload) => ({ identifier: 'noop', payload }))),
  work: async () => {
    const runner = await run({ preset: { worker }, logger, taskList: { noop: async (payload) => mark(payload) } })
    await runner.promise
  }
})
