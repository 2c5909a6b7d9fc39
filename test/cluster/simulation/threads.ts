/** Threads that play schedules: each has a processor, and code that the test runner's hooks do not slow down. */
import { Worker } from "node:worker_threads";
import type { Databases } from "../statements.ts";
import type { Played } from "./schedules.ts";

const threads = 2;
/** Schedules of a thread: one waits for PostgreSQL while another one goes on. */
export const atOnce = 2;

export interface Share {
  urls: string[];
  seeds: number[];
}

/** Resolves with a schedule of these seeds that has a violation; undefined: none has. */
export async function violationOnThreads(server: Databases, seeds: readonly number[]): Promise<Played | undefined> {
  const workers = Array.from({ length: threads }, (_, index) => {
    const urls = Array.from({ length: atOnce }, () => server.newDatabase());
    const share: Share = { urls, seeds: seeds.filter((_, place) => place % threads === index) };
    return new Worker(new URL("./player.ts", import.meta.url), { workerData: share });
  });
  try {
    return await firstOf(workers.map(playedBy));
  } finally {
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
}

/** Resolves as soon as one has a violation, or all have none. */
async function firstOf(ends: Promise<Played | undefined>[]): Promise<Played | undefined> {
  const { promise, resolve, reject } = Promise.withResolvers<Played | undefined>();
  for (const end of ends) end.then((played) => played !== undefined && resolve(played), reject);
  Promise.all(ends).then((all) => resolve(all.find((each) => each !== undefined)), reject);
  return await promise;
}

function playedBy(worker: Worker): Promise<Played | undefined> {
  const { promise, resolve, reject } = Promise.withResolvers<Played | undefined>();
  worker.once("message", resolve).once("error", reject);
  worker.once("exit", (code) => reject(new Error(`a thread of schedules ended with ${code}`)));
  return promise;
}
