/** How a URL names a process: digits are a PID, anything else a tag. */
import type { Selector } from "../../agent/agent.ts";
import { CapsuleError } from "../../wire/errors.ts";

/** The greatest PID that Linux can be configured to give out is 2^22. */
const greatestPid = 2 ** 22;

/** Throws not_found for what can be no process of a user; PID 1 is init and nobody's to touch. */
export function selectorOf(text: string): Selector {
  if (!/^[0-9]+$/.test(text)) {
    if (text === "" || text.includes("\0") || text.length > 64) throw noSuchProcess(text);
    return { tag: text };
  }
  const pid = Number(text);
  if (pid <= 1 || pid > greatestPid) throw noSuchProcess(text);
  return { pid };
}

function noSuchProcess(text: string): CapsuleError {
  return new CapsuleError("not_found", `process ${JSON.stringify(text.slice(0, 100))} does not exist`);
}
