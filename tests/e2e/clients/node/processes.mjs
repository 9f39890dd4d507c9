// process.Process through sandbox.commands and sandbox.pty.
import { assert, e2b, scenario, until } from './scenarios.mjs'

scenario('foreground_collects_both_streams', async (sandbox) => {
  const result = await sandbox.commands.run('echo out; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
})

scenario('a_failing_command_rejects_with_all_it_said', async (sandbox) => {
  const error = await sandbox.commands.run('echo o; echo e >&2; exit 7').catch((caught) => caught)
  assert(error instanceof e2b.CommandExitError)
  assert.deepEqual([error.exitCode, error.stdout, error.stderr], [7, 'o\n', 'e\n'])
})

scenario('users_cwd_and_envs', async (sandbox) => {
  const root = await sandbox.commands.run('whoami; pwd; echo $MARK', {
    user: 'root',
    cwd: '/tmp',
    envs: { MARK: 'zażółć 🦊' },
  })
  assert.equal(root.stdout, 'root\n/tmp\nzażółć 🦊\n')
  assert.equal((await sandbox.commands.run('whoami; pwd')).stdout, 'user\n/home/user\n')
  await assert.rejects(sandbox.commands.run('true', { user: 'nobody-here' }), /nobody-here/)
  await assert.rejects(sandbox.commands.run('true', { cwd: '/no/such' }), e2b.InvalidArgumentError)
})

scenario('large_output_arrives_whole', async (sandbox) => {
  const result = await sandbox.commands.run('seq 1 200000')
  assert.equal(result.stdout.length, 1_288_895)
  assert(result.stdout.endsWith('\n200000\n'))
})

scenario('output_is_streamed', async (sandbox) => {
  const seen = []
  await sandbox.commands.run('echo one; sleep 1; echo two', {
    onStdout: (text) => seen.push([Date.now(), text]),
  })
  assert.deepEqual(seen.map(([, text]) => text), ['one\n', 'two\n'])
  assert(seen[1][0] - seen[0][0] > 800)
})

scenario('background_stdin_connect_and_kill', async (sandbox) => {
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(cat.pid, 'hello\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'hello\n')

  const late = await sandbox.commands.run('sleep 0.7; echo late', { background: true })
  await late.disconnect()
  assert.equal((await (await sandbox.commands.connect(late.pid)).wait()).stdout, 'late\n')

  const sleeper = await sandbox.commands.run('sleep 60', { background: true })
  assert((await sandbox.commands.list()).some(({ pid }) => pid === sleeper.pid))
  assert.equal(await sandbox.commands.kill(sleeper.pid), true)
  await assert.rejects(sleeper.wait(), e2b.CommandExitError)
  assert.equal(await sandbox.commands.kill(sleeper.pid), false)
})

scenario('a_timeout_ends_the_command', async (sandbox) => {
  await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 1000 }), e2b.TimeoutError)
})

scenario('many_commands_at_once', async (sandbox) => {
  const numbers = [...Array(20).keys()]
  const results = await Promise.all(numbers.map((n) => sandbox.commands.run(`echo ${n}`)))
  assert.deepEqual(results.map(({ stdout }) => stdout), numbers.map((n) => `${n}\n`))
})

scenario('a_terminal_resizes_and_exits', async (sandbox) => {
  let output = ''
  const terminal = await sandbox.pty.create({
    cols: 80,
    rows: 24,
    onData: (data) => {
      output += Buffer.from(data).toString()
    },
  })
  await sandbox.pty.resize(terminal.pid, { cols: 132, rows: 30 })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('sleep 0.3; stty size; exit 4\n'))
  const error = await terminal.wait().catch((caught) => caught)
  assert.equal(error.exitCode, 4)
  assert.match(output, /30 132/)
})

scenario('a_killed_terminal_is_gone', async (sandbox) => {
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} })
  assert.equal(await sandbox.pty.kill(terminal.pid), true)
  await until(async () => (await sandbox.pty.kill(terminal.pid)) === false)
})
