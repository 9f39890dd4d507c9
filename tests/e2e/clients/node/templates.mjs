// Building templates, and starting from them.
import { mkdtempSync, writeFileSync, mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { randomUUID } from 'node:crypto'
import { assert, e2b, scenario } from './scenarios.mjs'

const { Sandbox, Template, waitForPort } = e2b
const SIZE = { cpuCount: 1, memoryMB: 512 }
const name = () => `t-${randomUUID().slice(0, 12)}`

scenario('steps_make_what_sandboxes_start_from', async () => {
  const context = mkdtempSync(join(tmpdir(), 'context-'))
  mkdirSync(join(context, 'app'))
  writeFileSync(join(context, 'app', 'main.py'), "print('main')\n")
  const template = Template({ fileContextPath: context })
    .fromTemplate('base')
    .setEnvs({ COLOUR: 'red' })
    .setWorkdir('/srv/work')
    .copy('app', 'code')
    .runCmd('echo $COLOUR > colour')
    .setStartCmd('python3 -m http.server 8123', waitForPort(8123))
  const built = name()
  const said = []
  await Template.build(template, built, { ...SIZE, onBuildLogs: ({ message }) => said.push(message) })
  assert(said.some((line) => line.includes('RUN echo $COLOUR')), said.join('\n'))
  const sandbox = await Sandbox.create(built, { timeoutMs: 60_000 })
  const { stdout } = await sandbox.commands.run('whoami; pwd; cat colour; curl -s localhost:8123/code/main.py')
  assert.equal(stdout, "user\n/srv/work\nred\nprint('main')\n")
  await sandbox.kill()

  said.length = 0
  await Template.build(template, `${built}:again`, { ...SIZE, onBuildLogs: ({ message }) => said.push(message) })
  assert.equal(said.filter((line) => line.startsWith('CACHED')).length, 4)
  assert.equal(await Template.exists(built), true)
  assert.deepEqual((await Template.getTags(built)).map(({ tag }) => tag).sort(), ['again', 'default'])
})

scenario('a_step_that_fails_is_named_with_its_words', async () => {
  const template = Template().fromTemplate('base').runCmd('exit 3')
  await assert.rejects(Template.build(template, name(), SIZE), /failed to run command 'exit 3': exit status 3/)
})
