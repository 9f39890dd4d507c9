// Pause, resume, snapshots and forks; a counter shows whether memory survived.
import { assert, e2b, scenario, until } from './scenarios.mjs'

const { Sandbox } = e2b
const COUNTER =
  'i=0; while true; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.05; done'

const count = async (sandbox) => Number(await sandbox.files.read('/tmp/count'))
const pids = async (sandbox) => (await sandbox.commands.list()).map(({ pid }) => pid)
const state = async (sandbox) => (await Sandbox.getInfo(sandbox.sandboxId)).state

async function counting(options = {}) {
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, ...options })
  const handle = await sandbox.commands.run(COUNTER, { background: true, timeoutMs: 0 })
  await until(async () => (await sandbox.files.exists('/tmp/count')) && (await count(sandbox)) > 3)
  return { sandbox, pid: handle.pid }
}

async function goesOn(sandbox, before) {
  const seen = await count(sandbox)
  assert(seen >= before)
  await until(async () => (await count(sandbox)) > seen)
}

scenario('a_pause_keeps_processes_and_connect_resumes_them', async () => {
  const { sandbox, pid } = await counting()
  const before = await count(sandbox)
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal(await state(sandbox), 'paused')
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(await state(sandbox), 'running')
  assert((await pids(again)).includes(pid))
  await goesOn(again, before)
  await sandbox.kill()
})

scenario('at_its_timeout_it_pauses_and_traffic_resumes_it', async () => {
  const lifecycle = { onTimeout: 'pause', autoResume: true }
  const { sandbox, pid } = await counting({ lifecycle })
  const before = await count(sandbox)
  await sandbox.setTimeout(1000)
  await until(async () => (await state(sandbox)) === 'paused')
  await goesOn(sandbox, before)
  assert((await pids(sandbox)).includes(pid))
  await sandbox.kill()
})

scenario('without_memory_it_boots_again_with_its_files', async () => {
  const { sandbox } = await counting()
  const boot = async () => (await sandbox.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout
  const before = await boot()
  await sandbox.files.write('/home/user/kept', 'yes')
  assert.equal(await sandbox.pause({ keepMemory: false }), true)
  await sandbox.connect()
  assert.equal(await sandbox.files.read('/home/user/kept'), 'yes')
  assert.deepEqual(await pids(sandbox), [])
  assert.notEqual(await boot(), before)
  await sandbox.kill()
})

scenario('at_its_timeout_it_pauses_and_traffic_is_refused', async () => {
  const { sandbox, pid } = await counting({ lifecycle: { onTimeout: 'pause' } })
  const before = await count(sandbox)
  await sandbox.setTimeout(1000)
  await until(async () => (await state(sandbox)) === 'paused')
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await state(sandbox), 'paused')
  await sandbox.connect()
  assert((await pids(sandbox)).includes(pid))
  await goesOn(sandbox, before)
  await sandbox.kill()
})

scenario('snapshots_start_others_until_they_are_deleted', async () => {
  const { sandbox, pid } = await counting()
  const before = await count(sandbox)
  const { snapshotId } = await sandbox.createSnapshot()
  await goesOn(sandbox, before)
  const child = await Sandbox.create(snapshotId, { timeoutMs: 120_000 })
  assert((await pids(child)).includes(pid))
  await goesOn(child, before)
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
  await assert.rejects(Sandbox.create(snapshotId))
  await child.kill()
  await sandbox.kill()
})

scenario('forks_go_on_from_one_moment_and_apart', async () => {
  const { sandbox, pid } = await counting()
  const before = await count(sandbox)
  const forks = await sandbox.fork({ count: 2, timeoutMs: 120_000 })
  assert.equal(new Set([sandbox, ...forks].map(({ sandboxId }) => sandboxId)).size, 3)
  for (const fork of forks) {
    assert((await pids(fork)).includes(pid))
    await goesOn(fork, before)
    await fork.kill()
  }
  await goesOn(sandbox, before)
  await sandbox.kill()
})
