/** What a test leaves in a capsule to find again: something on its disk, and something that only its memory holds. */
import assert from "node:assert/strict";
import type { TestCapsule } from "../client.ts";

export async function furnish(capsule: TestCapsule): Promise<void> {
  await capsule.sh("echo kept > /root/file; sync; setsid sleep 1000000 >/dev/null 2>&1 & echo $! > /root/pid");
}

export async function assertFurnished(capsule: TestCapsule): Promise<void> {
  assert.equal(await capsule.sh("cat /root/file; kill -0 $(cat /root/pid) && echo alive"), "kept\nalive");
}
