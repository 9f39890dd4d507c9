// Runs scenarios against a live server with the published SDK found in the folder given first.
// Prints one JSON line per scenario.
import { createRequire } from 'node:module'
import assert from 'node:assert/strict'

const [home, ...modules] = process.argv.slice(2)
export const e2b = createRequire(`${home}/index.js`)('e2b')
export { assert }

const found = (globalThis.scenarios ??= [])

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

async function runModule(module) {
  found.length = 0
  await import(`./${module}.mjs`)
  const sandbox = await e2b.Sandbox.create({ timeoutMs: 600_000 })
  try {
    for (const { name, run } of found) {
      const started = performance.now()
      let error = null
      try {
        await run(sandbox)
      } catch (caught) {
        error = caught?.stack ?? String(caught)
      }
      const seconds = (performance.now() - started) / 1000
      console.log(JSON.stringify({ name: `${module}.${name}`, error, seconds }))
    }
  } finally {
    await sandbox.kill()
  }
}

if (!globalThis.running) {
  globalThis.running = true
  for (const module of modules) await runModule(module)
  process.exit(0)
}
