/**
 * A process with 2 MiB of random data in its memory only, for tests of pause and resume. On requests through a FIFO it
 * rewrites a part of the data or prints its hash.
 */
import type { TestCapsule } from "../client.ts";

const program = `
import hashlib, os, sys
memory = bytearray(os.urandom(2 << 20))
os.mkfifo('/run/ask'); os.mkfifo('/run/answer')
open('/run/memory-process', 'w').write(str(os.getpid()))
steps = 0
while True:
    for line in open('/run/ask'):
        if line.strip() == 'change':
            at = (steps * 1234567) % (1 << 20)
            memory[at:at + 500000] = os.urandom(500000)
            steps += 1
        with open('/run/answer', 'w') as out:
            out.write('%d %d %s\\n' % (os.getpid(), steps, hashlib.sha256(memory).hexdigest()))
`;

export async function startMemoryProcess(capsule: TestCapsule): Promise<void> {
  await capsule.run("bash", ["-c", `setsid python3 -c "$1" </dev/null >/tmp/memory-process.log 2>&1 &`, "-", program]);
  await capsule.sh("until [ -s /run/memory-process ]; do sleep 0.02; done");
}

/** Its PID, the number of changes, and the hash of its memory. */
export function askMemoryProcess(capsule: TestCapsule, question: "tell" | "change"): Promise<string> {
  return capsule.sh(`echo ${question} > /run/ask; cat /run/answer`);
}
