// Runs the scenarios of the named modules against a live server: run.mjs SDK-FOLDER MODULE...
// Prints one JSON line per scenario.
import { e2b, found } from './scenarios.mjs'

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

for (const module of process.argv.slice(3)) await runModule(module)
process.exit(0)
