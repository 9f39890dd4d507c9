// Volumes: made, found, mounted; their files from inside and outside.
import { assert, collect, e2b, scenario, until } from './scenarios.mjs'

const { Sandbox, Volume } = e2b
const BLOB = Buffer.alloc(5_000_000, 'aenv')
const make = () => Volume.create(`v-${Date.now()}-${Math.floor(Math.random() * 1e6)}`)

scenario('volumes_are_made_found_and_destroyed', async () => {
  const volume = await make()
  const info = await Volume.getInfo(volume.volumeId)
  assert.equal(info.token, volume.token)
  assert((await Volume.list()).some(({ name }) => name === volume.name))
  const again = await Volume.connect(volume.volumeId)
  await volume.writeFile('/f', 'text')
  assert.equal(await again.readFile('/f'), 'text')
  await assert.rejects(Volume.create(volume.name))
  assert.equal(await Volume.destroy(volume.volumeId), true)
  assert.equal(await Volume.destroy(volume.volumeId), false)
})

scenario('files_and_folders_pass_in_every_way', async () => {
  const volume = await make()
  const info = await volume.writeFile('/deep/blob', new Blob([BLOB]), { mode: 0o640 })
  assert.deepEqual([info.path, info.size, info.mode], ['/deep/blob', BLOB.length, 0o640])
  assert(Buffer.from(await volume.readFile('/deep/blob', { format: 'bytes' })).equals(BLOB))
  const stream = await volume.readFile('/deep/blob', { format: 'stream' })
  assert((await collect(stream)).equals(BLOB))
  const made = await volume.makeDir('/a/b', { uid: 1234, mode: 0o750, force: true })
  assert.deepEqual([made.type, made.uid, made.mode], ['directory', 1234, 0o750])
  const listed = await volume.list('/', { depth: 2 })
  assert.deepEqual(
    listed.map(({ path }) => path),
    ['/a', '/deep', '/a/b', '/deep/blob'],
  )
  assert.equal((await volume.updateMetadata('/a/b', { mode: 0o700 })).mode, 0o700)
  assert.equal(await volume.exists('/none'), false)
  await volume.remove('/deep')
  assert.equal(await volume.exists('/deep/blob'), false)
  await Volume.destroy(volume.volumeId)
})

scenario('a_sandbox_has_what_it_was_created_with', async () => {
  const volume = await make()
  await volume.writeFile('/in', 'from outside')
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, volumeMounts: { '/mnt/data': volume } })
  assert.equal((await sandbox.commands.run('cat /mnt/data/in')).stdout, 'from outside')
  await sandbox.files.write('/mnt/data/out', 'from inside')
  assert.equal(await volume.readFile('/out'), 'from inside')
  await assert.rejects(
    Sandbox.create({ volumeMounts: { '/d': volume.name } }),
    (error) => error.message.includes(sandbox.sandboxId),
  )
  await assert.rejects(Volume.destroy(volume.volumeId))
  await sandbox.kill()
  await until(() => Volume.destroy(volume.volumeId))
})
