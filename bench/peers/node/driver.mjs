// What is the same for both peers: the payload, the marks that Python reads, and the commands.
import fs from 'node:fs'

const TEXT = 'a durable queue keeps the work of the day safe until somebody has really done it, and says so after'
const FIRST_NUMBER = 100_000
const WARM_UP_JOBS = 50
const PROCESSES = 8 // as in marks.py: counters, first starts, then a stamp per job, 64 bits each
const FLUSH_MILLISECONDS = 3

const note = (number) => ({ user_id: FIRST_NUMBER + number, text: TEXT })
const notes = (first, count) => Array.from({ length: count }, (_, index) => note(first + index))
const now = () => process.hrtime.bigint() // CLOCK_MONOTONIC, which Python reads, too
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds))

let file = null
let cells = null
let count = 0n
let first = 0n
let lowest = Infinity
let highest = -1

function open () {
  file = fs.openSync(process.env.BENCH_MARKS, 'r+')
  cells = Buffer.alloc(fs.fstatSync(file).size - 16 * PROCESSES)
  first = now()
  setInterval(flush, FLUSH_MILLISECONDS)
}

function flush () {
  if (highest >= 0) {
    fs.writeSync(file, cells, 8 * lowest, 8 * (highest - lowest + 1), 8 * (2 * PROCESSES + lowest))
    lowest = Infinity
    highest = -1
  }
  const cell = Buffer.alloc(8)
  cell.writeBigInt64LE(first)
  fs.writeSync(file, cell, 0, 8, 8 * PROCESSES)
  cell.writeBigInt64LE(count)
  fs.writeSync(file, cell, 0, 8, 0)
}

export function mark (payload) {
  if (file === null) open()
  const number = payload.user_id - FIRST_NUMBER
  if (number >= 0 && number < cells.length / 8) {
    cells.writeBigInt64LE(now(), 8 * number)
    if (number < lowest) lowest = number
    if (number > highest) highest = number
  }
  count += 1n
}

const commands = {
  async one ({ submit }, jobs) {
    for (let number = 0; number < WARM_UP_JOBS; number++) await submit(note(number))
    const start = now()
    for (let number = 0; number < jobs; number++) await submit(note(number))
    return { seconds: Number(now() - start) / 1e9 }
  },
  async many ({ submitMany }, jobs, batch) {
    const start = now()
    for (let number = 0; number < jobs; number += batch) await submitMany(notes(number, Math.min(batch, jobs - number)))
    return { seconds: Number(now() - start) / 1e9 }
  },
  async warm ({ submit }, jobs, number) {
    for (let done = 0; done < jobs; done++) await submit(note(number))
    return {}
  },
  async load ({ submit }, jobs, gap) {
    await submit(note(-1)) // the connection is made
    await sleep(500)
    const begun = []
    const submitted = []
    const start = performance.now()
    for (let number = 0; number < jobs; number++) {
      await sleep(Math.max(0, start + number * gap - performance.now()))
      begun.push(String(now()))
      submitted.push(submit(note(number)))
    }
    await Promise.all(submitted)
    return { begun }
  }
}

export async function drive ({ open, close, submit, submitMany, work }) {
  const [command, ...values] = process.argv.slice(2)
  if (command === 'worker') {
    await work()
    return
  }
  await open()
  const answer = await commands[command]({ submit, submitMany }, ...values.map(Number))
  await close()
  console.log(JSON.stringify(answer))
  process.exit(0)
}
