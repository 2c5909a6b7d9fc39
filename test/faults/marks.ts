/** State that tests put into a capsule and check later: a file, and a process that exists in memory only. */
import assert from "node:assert/strict";
import type { TestCapsule } from "../client.ts";

export async function mark(capsule: TestCapsule): Promise<void> {
  await capsule.sh("echo kept > /root/file; sync; setsid sleep 1000000 >/dev/null 2>&1 & echo $! > /root/pid");
}

export async function assertMarked(capsule: TestCapsule): Promise<void> {
  assert.equal(await capsule.sh("cat /root/file; kill -0 $(cat /root/pid) && echo alive"), "kept\nalive");
}
