/** Guests whose agent says nothing any more, because root has taken its port. */
import assert from "node:assert/strict";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";

/** Afterwards the guest runs, but its agent neither reads nor writes; also after a pause and a resume. */
export async function mute(capsule: TestCapsule): Promise<TestCapsule> {
  const script = "cd /sys/bus/virtio/drivers/virtio_console; for port in virtio*; do echo $port > unbind; done";
  await capsule.exec({ cmd: "bash", args: ["-c", `(sleep 2; ${script}) >/dev/null 2>&1 &`] });
  let silences = 0;
  await waitFor("the agent is silent three times in a row", async () => {
    const signal = AbortSignal.timeout(4_000);
    const reply = await capsule.exec({ cmd: "true", timeout: 0 }, { signal }).catch(() => undefined);
    if (reply?.status === 409) {
      assert.equal((await capsule.view()).status, "error", reply.text); // the service has noticed
      return true;
    }
    silences = reply?.status === 200 ? 0 : silences + 1;
    return silences === 3;
  });
  return capsule;
}
