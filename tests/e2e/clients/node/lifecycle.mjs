// Control routes.
import { assert, e2b, scenario, until } from './scenarios.mjs'

const { Sandbox } = e2b

scenario('info_list_and_kill', async () => {
  const mark = crypto.randomUUID()
  const metadata = { mark, 'odd key & more': 'a=b&c d%/ü' }
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata, envs: { COLOUR: 'red' } })
  const info = await sandbox.getInfo()
  assert.deepEqual(info.metadata, metadata)
  assert.equal(info.state, 'running')
  assert.equal((await sandbox.commands.run('echo $COLOUR')).stdout, 'red\n')
  const pages = Sandbox.list({ query: { metadata } })
  assert.deepEqual((await pages.nextItems()).map(({ sandboxId }) => sandboxId), [sandbox.sandboxId])
  assert.equal(await sandbox.isRunning(), true)
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.kill(), false)
  assert.equal(await sandbox.isRunning(), false)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId), e2b.NotFoundError)
})

scenario('connect_and_timeouts', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000 })
  const { endAt, startedAt } = await again.getInfo()
  assert(endAt - startedAt > 500_000)
  await again.setTimeout(1000)
  await until(async () => !(await sandbox.isRunning()))
})

scenario('a_kill_aborts_the_streams_of_the_sandbox', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
  const handle = await sandbox.commands.run('sleep 60', { background: true })
  const ended = handle.wait().catch((caught) => caught)
  await sandbox.kill()
  assert((await ended) instanceof e2b.SandboxError)
})

scenario('metrics_are_there_at_once', async (sandbox) => {
  const [first] = await sandbox.getMetrics()
  assert(first.memUsed > 0 && first.memUsed <= first.memTotal)
  assert(first.cpuCount >= 1)
})

scenario('refusals_have_reasons', async (sandbox) => {
  await assert.rejects(Sandbox.create('no-such-template'))
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), e2b.AuthenticationError)
})

scenario('a_guest_port_by_host_name', async (sandbox) => {
  await sandbox.files.write('index.html', 'hello')
  await sandbox.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '8000' }
  const url = `${process.env.E2B_SANDBOX_URL}/index.html`
  await until(async () => (await fetch(url, { headers })).status === 200)
  assert.equal(await (await fetch(url, { headers })).text(), 'hello')
  assert(sandbox.getHost(8000).startsWith(`8000-${sandbox.sandboxId}.`))
})
