/** Throughput of all cores at once. On a shared machine it is less than their number times that of one core. */
import { once } from "node:events";
import { Worker } from "node:worker_threads";

const samples = 3;
const spinMs = 400;

const spin = `
const { parentPort } = require("node:worker_threads");
parentPort.on("message", (ms) => {
  let rounds = 0;
  for (const until = performance.now() + ms; performance.now() < until; rounds++) for (let i = 0, x = 1; i < 10_000; i++) x = (x * 48_271) % 2_147_483_647;
  parentPort.postMessage(rounds);
});
parentPort.postMessage("ready");
`;

/** Percent of the throughput of one core alone, per sample. */
export async function coresAtOnce(): Promise<number[]> {
  const workers = Array.from({ length: navigator.hardwareConcurrency }, () => new Worker(spin, { eval: true }));
  try {
    await Promise.all(workers.map((worker) => once(worker, "message")));
    const found: number[] = [];
    for (let sample = 0; sample < samples; sample++) {
      const alone = await roundsOf(workers.slice(0, 1));
      found.push((100 * (await roundsOf(workers))) / alone);
    }
    return found;
  } finally {
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
}

async function roundsOf(workers: Worker[]): Promise<number> {
  const told = workers.map((worker) => once(worker, "message") as Promise<[number]>);
  for (const worker of workers) worker.postMessage(spinMs);
  return (await Promise.all(told)).reduce((sum, [rounds]) => sum + rounds, 0);
}
