/** `capsule stats`: the newest point of each capsule's metrics, once or every ten seconds. */
import { setTimeout as delay } from "node:timers/promises";
import type { Capsule, CapsuleMetric, Client } from "../sdk/sdk.ts";
import type { Call } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { note, printJson, printLine, table } from "./screen.ts";
import { capsuleBy } from "./service.ts";

const everyMs = 10_000;

export async function stats(call: Call): Promise<number> {
  const client = await call.client();
  const stop = new AbortController();
  const isEndless = call.isSet("watch");
  if (isEndless) for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => stop.abort());
  do {
    await print(call, await capsulesOf(client, call.words));
    if (isEndless) await delay(everyMs, undefined, { signal: stop.signal }).catch(() => {});
  } while (isEndless && !stop.signal.aborted);
  return exitCodes.done;
}

async function capsulesOf(client: Client, ids: readonly string[]): Promise<Capsule[]> {
  if (ids.length === 0) return await client.list({ status: "running" });
  const capsules: Capsule[] = [];
  for (const id of ids) capsules.push(await capsuleBy(client, id));
  return capsules;
}

async function print(call: Call, capsules: Capsule[]): Promise<void> {
  const rows: string[][] = [];
  for (const capsule of capsules) {
    const point = (await capsule.metrics()).at(-1);
    if (call.isJson) await printJson({ id: capsule.id, ...point });
    else rows.push([capsule.id, capsule.info.name ?? "", capsule.status, ...cells(point)]);
  }
  if (call.isJson) return;
  if (rows.length === 0) note("No capsule runs.");
  else await printLine(table(["ID", "NAME", "STATUS", "CPU", "MEMORY", "DISK"], rows));
}

function cells(point: CapsuleMetric | undefined): string[] {
  if (point === undefined) return ["-", "-", "-"];
  const { cpuPct, vcpus, memoryUsedMb, memoryTotalMb, diskUsedMb, diskTotalMb } = point;
  const part = (used: number | null, total: number | null) => (used === null ? "-" : `${used}/${total} MiB`);
  return [`${cpuPct}% of ${vcpus * 100}%`, part(memoryUsedMb, memoryTotalMb), part(diskUsedMb, diskTotalMb)];
}
