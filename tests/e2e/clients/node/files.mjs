// /files, filesystem.Filesystem, watches and signed URLs.
import { assert, collect, e2b, scenario, until } from './scenarios.mjs'

const blob = Buffer.from(Array.from({ length: 1 << 20 }, (_, index) => index % 251))

scenario('text_and_bytes_pass_unharmed', async (sandbox) => {
  const info = await sandbox.files.write('notes/über.txt', 'zażółć 🦊\n')
  assert.equal(info.path, '/home/user/notes/über.txt')
  assert.equal(await sandbox.files.read('notes/über.txt'), 'zażółć 🦊\n')
  const bytes = blob.buffer.slice(blob.byteOffset, blob.byteOffset + blob.length)
  await sandbox.files.write('blob', bytes)
  assert(Buffer.from(await sandbox.files.read('blob', { format: 'bytes' })).equals(blob))
  assert((await collect(await sandbox.files.read('blob', { format: 'stream' }))).equals(blob))
  const found = await sandbox.files.read('blob', { format: 'blob' })
  assert.equal(found.size, blob.length)
})

scenario('several_files_at_once', async (sandbox) => {
  const entries = [...Array(5).keys()].map((n) => ({ path: `many/${n}`, data: String(n) }))
  assert.equal((await sandbox.files.write(entries)).length, 5)
  assert.equal(await sandbox.files.read('many/3'), '3')
})

scenario('folders_entries_and_moves', async (sandbox) => {
  assert.equal(await sandbox.files.makeDir('tree/a'), true)
  assert.equal(await sandbox.files.makeDir('tree/a'), false)
  await sandbox.files.write('tree/file', '12345')
  const entries = await sandbox.files.list('tree')
  assert.deepEqual(entries.map(({ name, type }) => [name, type]).sort(), [['a', 'dir'], ['file', 'file']])
  assert.equal((await sandbox.files.getInfo('tree/file')).size, 5)
  assert.equal((await sandbox.files.rename('tree/file', 'tree/other')).name, 'other')
  assert.equal(await sandbox.files.exists('tree/file'), false)
  await sandbox.files.remove('tree')
  assert.equal(await sandbox.files.exists('tree'), false)
})

scenario('what_is_not_there_is_not_found', async (sandbox) => {
  await assert.rejects(sandbox.files.read('nope'), e2b.NotFoundError)
  await assert.rejects(sandbox.files.getInfo('nope'), e2b.NotFoundError)
  await assert.rejects(sandbox.files.list('nope'), e2b.NotFoundError)
})

scenario('metadata_is_kept', async (sandbox) => {
  await sandbox.files.write('meta', 'x', { metadata: { author: 'me' } })
  assert.deepEqual((await sandbox.files.getInfo('meta')).metadata, { author: 'me' })
})

scenario('a_watch_tells_create_chmod_write', async (sandbox) => {
  await sandbox.files.makeDir('watched')
  const events = []
  const watch = await sandbox.files.watchDir('watched', (event) => events.push(event))
  await sandbox.files.write('watched/new', 'x')
  await until(() => events.length >= 3)
  assert.deepEqual(events.slice(0, 3).map(({ name, type }) => [name, type]), [
    ['new', 'create'],
    ['new', 'chmod'],
    ['new', 'write'],
  ])
  await watch.stop()
})

scenario('signed_urls_read_and_write', async (sandbox) => {
  await sandbox.files.write('signed', 'content')
  const url = await sandbox.downloadUrl('signed', { useSignatureExpiration: 60_000 })
  assert.equal(await (await fetch(url)).text(), 'content')
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'up')
  const reply = await fetch(await sandbox.uploadUrl('up'), { method: 'POST', body: form })
  assert.equal(reply.status, 200)
  assert.equal(await sandbox.files.read('up'), 'uploaded')
  assert.equal((await fetch(url.replace('v1_', 'v1_x'))).status, 401)
})
