/** Entry of a thread that plays its share of schedules, and tells of the first violation. */
import { parentPort, workerData } from "node:worker_threads";
import { firstViolation } from "./schedules.ts";
import { atOnce, type Share } from "./threads.ts";

const { urls, seeds } = workerData as Share;
const server = { newDatabase: () => urls.pop()! };
const played = await firstViolation(server, seeds, { atOnce });
const { violation, ...rest } = played ?? {};
parentPort!.postMessage(played === undefined ? undefined : { ...rest, violation: asError(violation) });

/** A clone of an error of a class of the program would lose its stack. */
function asError(violation: Error | undefined): Error | undefined {
  if (violation === undefined) return undefined;
  const error = new Error(violation.message);
  error.stack = String(violation.stack);
  return error;
}
