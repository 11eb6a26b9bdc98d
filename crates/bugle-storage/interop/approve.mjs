// Approves, declines or resumes with the reference a run that Bugle parked. See README.md.
//   node approve.mjs FILE RUN CALL approve|decline|JSON
import assert from 'node:assert/strict'
import { Agent } from '@mastra/core/agent'
import { Mastra } from '@mastra/core/mastra'
import { createTool } from '@mastra/core/tools'
import { LibSQLStore } from '@mastra/libsql'
import { Memory } from '@mastra/memory'
import { z } from 'zod'

const [file, runId, toolCallId, verdict = 'approve'] = process.argv.slice(2)
assert.ok(file && runId && toolCallId, 'usage: node approve.mjs FILE RUN CALL approve|decline|JSON')

// Says what it was told, so that the prompt after the resume can be looked at.
const prompts = []
const model = {
  specificationVersion: 'v2',
  provider: 'mock',
  modelId: 'mock-1',
  supportedUrls: {},
  async doGenerate() {
    throw new Error('not used')
  },
  async doStream({ prompt }) {
    prompts.push(prompt)
    const parts = [
      { type: 'stream-start', warnings: [] },
      { type: 'text-start', id: 't' },
      { type: 'text-delta', id: 't', delta: 'finished' },
      { type: 'text-end', id: 't' },
      { type: 'finish', finishReason: 'stop', usage: { inputTokens: 20, outputTokens: 6, totalTokens: 26 } },
    ]
    return {
      stream: new ReadableStream({
        start(controller) {
          parts.forEach(part => controller.enqueue(part))
          controller.close()
        },
      }),
    }
  },
}

const ran = []
const remove = createTool({
  id: 'remove',
  description: 'Removes a file.',
  inputSchema: z.object({ path: z.string() }),
  requireApproval: true,
  execute: async input => {
    ran.push(input)
    return { removed: input.path ?? input.context?.path }
  },
})
const ask = createTool({
  id: 'ask',
  description: 'Asks the person.',
  inputSchema: z.object({ question: z.string() }),
  suspendSchema: z.any(),
  resumeSchema: z.object({ answer: z.string() }),
  execute: async (input, context) => {
    const data = context?.agent?.resumeData ?? context?.resumeData
    if (!data) return (context.agent ?? context).suspend({ question: input.question })
    ran.push(data)
    return { answer: data.answer }
  },
})

const storage = new LibSQLStore({ id: 'interop', url: `file:${file}` })
await storage.init()
const workflows = await storage.getStore('workflows')
const before = await workflows.loadWorkflowSnapshot({ workflowName: 'agentic-loop', runId })
assert.ok(before, `run ${runId} is not parked in ${file}`)
const id = before.context.executionWorkflow.suspendPayload.__agentId
const agent = new Agent({
  id,
  name: id,
  instructions: `You are ${id}.`,
  model,
  tools: { remove, ask },
  memory: new Memory({ storage, options: { lastMessages: 20 } }),
})
new Mastra({ agents: { [id]: agent }, storage, logger: false })

const listed = await agent.listSuspendedRuns({})
assert.ok(listed.runs.some(run => run.runId === runId && run.toolCalls.some(call => call.toolCallId === toolCallId)), JSON.stringify(listed))
console.log('the run is listed')

const call = { runId, toolCallId }
const stream =
  verdict === 'approve'
    ? await agent.approveToolCall(call)
    : verdict === 'decline'
      ? await agent.declineToolCall({ ...call, reason: 'not today' })
      : await agent.resumeStream(JSON.parse(verdict), call)
const types = []
for await (const chunk of stream.fullStream) {
  types.push(chunk.type)
  if (chunk.type === 'error') console.error(chunk.payload)
}
assert.equal(ran.length, verdict === 'decline' ? 0 : 1, 'the tool runs as often as it should')
if (types.includes('tool-call-approval') || types.includes('tool-call-suspended')) {
  // The reference shows results once all calls of the step are decided.
  console.log(`the call is answered; the run waits again (${types.join(' ')})`)
} else {
  assert.ok(types.includes(verdict === 'decline' ? 'tool-output-denied' : 'tool-result'), types.join(' '))
  assert.equal(types.at(-1), 'finish', types.join(' '))
  assert.equal(await stream.text, 'finished')
  const told = JSON.stringify(prompts.at(-1))
  assert.ok(told.includes(toolCallId) && told.includes('"tool"'), told)
  assert.equal(await workflows.loadWorkflowSnapshot({ workflowName: 'agentic-loop', runId }), null)
  assert.equal(await workflows.loadWorkflowSnapshot({ workflowName: 'executionWorkflow', runId }), null)
  console.log('the run went on to its end, and its rows are gone')
}
