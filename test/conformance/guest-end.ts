/** The ends of guests that programs in them cause. */
import type { TestCapsule } from "../client.ts";
import { expectErrors } from "./service.ts";

/** A request was under way when the guest ended. */
export const guestGone = /"message":"the connection to the guest agent was (closed|lost)".*"msg":"request failed"/;

/**
 * Runs a script that ends the guest, 2 s later, so that the answer to its start is out before, as a rule. On a busy machine the
 * service may hear of the guest's end first; so that answer is not asserted.
 */
export async function endGuest(capsule: TestCapsule, script: string): Promise<void> {
  expectErrors(guestGone);
  await capsule.exec({ cmd: "bash", args: ["-c", `sleep 2; ${script}`], background: true });
}
