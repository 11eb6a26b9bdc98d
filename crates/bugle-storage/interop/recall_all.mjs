// Lists every thread of a file with the reference's own packages and recalls all messages of each. See README.md.
import { LibSQLStore } from '@mastra/libsql'
import { Memory } from '@mastra/memory'

const storage = new LibSQLStore({ id: 'interop', url: `file:${process.argv[2]}` })
await storage.init()
const memory = new Memory({ storage })
const { threads } = await memory.listThreads({ perPage: false })
let count = 0
for (const thread of threads) {
  const { messages } = await memory.recall({ threadId: thread.id, resourceId: thread.resourceId, perPage: false })
  count += messages.length
}
console.log(`${threads.length} threads, ${count} messages`)
