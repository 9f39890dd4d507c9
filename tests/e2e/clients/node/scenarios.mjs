// The registry of scenarios, and the published SDK of the folder that run.mjs was given.
import { createRequire } from 'node:module'
import assert from 'node:assert/strict'

const home = process.argv[2]
export const e2b = createRequire(`${home}/index.js`)('e2b')
export { assert }

export const found = []

/** A scenario gets the module's shared sandbox. */
export function scenario(name, run) {
  found.push({ name, run })
}

/** The first true value of `condition()`. */
export async function until(condition, timeoutMs = 10_000) {
  const deadline = Date.now() + timeoutMs
  for (;;) {
    const value = await condition()
    if (value) return value
    assert(Date.now() < deadline, 'it did not happen in time')
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

/** Concatenation of a web stream's chunks. */
export async function collect(stream) {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}
