// Reads a file that Bugle wrote with the reference's own packages, then writes to it. See README.md.
import assert from 'node:assert/strict'
import { LibSQLStore } from '@mastra/libsql'
import { Memory } from '@mastra/memory'

const file = process.argv[2]
assert.ok(file, 'usage: node check.mjs FILE')
const storage = new LibSQLStore({ id: 'interop', url: `file:${file}` })
await storage.init()
const memory = new Memory({ storage, options: { lastMessages: 10 } })

const { threads, total } = await memory.listThreads({ filter: { resourceId: 'ann' } })
assert.equal(total, 1)
assert.equal(threads[0].id, 'trip')
assert.equal(threads[0].title, 'Trip to Oslo')
assert.deepEqual(threads[0].metadata, { color: 'red', n: 3 })
console.log('threads are listed')

const filtered = await memory.listThreads({ filter: { metadata: { color: 'red' } } })
assert.equal(filtered.total, 1)
console.log('threads are filtered by metadata')

const recalled = await memory.recall({ threadId: 'trip', resourceId: 'ann' })
assert.deepEqual(recalled.messages.map(m => [m.id, m.role, m.type]), [['m1', 'signal', 'user'], ['m2', 'assistant', undefined]] /* it leaves `v2` out */)
assert.equal(recalled.messages[0].content.parts[0].text, 'How cold is Oslo? 🙂')
assert.equal(recalled.messages[1].content.parts[0].text, 'Ask "yr.no"\nor look outside.')
assert.equal(recalled.messages[0].content.metadata.signal.type, 'user')
console.log('messages are recalled')

const store = await storage.getStore('memory')
const resource = await store.getResourceById({ resourceId: 'ann' })
assert.equal(resource.workingMemory, '# Ann\n- likes snow')
assert.deepEqual(resource.metadata, { plan: 'free' })
console.log('the resource is read')

const notifications = await storage.getStore('notifications')
const records = await notifications.listNotifications({ threadId: 'trip' })
assert.equal(records.length, 1)
assert.deepEqual([records[0].id, records[0].summary, records[0].payload], ['n1', 'CI failed', { run: 7 }])
console.log('notifications are listed')

await memory.updateThread({ id: 'trip', title: 'Trip to Bergen', metadata: { ...threads[0].metadata, by: 'reference' } })
await memory.saveMessages({
  messages: [
    {
      id: 'm3',
      role: 'user',
      type: 'v2',
      threadId: 'trip',
      resourceId: 'ann',
      createdAt: new Date('2026-01-01T00:00:09.000Z'),
      content: { format: 2, parts: [{ type: 'text', text: 'And Bergen?' }], content: 'And Bergen?' },
    },
  ],
})
console.log('the thread is updated, a message is saved')
