/** How much all cores compute at once: where other machines have a share in them, less than their number times what one does. */
import { once } from "node:events";
import { Worker } from "node:worker_threads";

const looks = 3;
const spinMs = 400;

const spin = `
const { parentPort } = require("node:worker_threads");
parentPort.on("message", (ms) => {
  let turns = 0;
  for (const until = performance.now() + ms; performance.now() < until; turns++) for (let i = 0, x = 1; i < 10_000; i++) x = (x * 48_271) % 2_147_483_647;
  parentPort.postMessage(turns);
});
parentPort.postMessage("ready");
`;

/** Percent of what one core does alone, look by look. */
export async function coresAtOnce(): Promise<number[]> {
  const workers = Array.from({ length: navigator.hardwareConcurrency }, () => new Worker(spin, { eval: true }));
  try {
    await Promise.all(workers.map((worker) => once(worker, "message")));
    const found: number[] = [];
    for (let look = 0; look < looks; look++) {
      const alone = await turnsOf(workers.slice(0, 1));
      found.push((100 * (await turnsOf(workers))) / alone);
    }
    return found;
  } finally {
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
}

async function turnsOf(workers: Worker[]): Promise<number> {
  const told = workers.map((worker) => once(worker, "message") as Promise<[number]>);
  for (const worker of workers) worker.postMessage(spinMs);
  return (await Promise.all(told)).reduce((sum, [turns]) => sum + turns, 0);
}
