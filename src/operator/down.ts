/** `capsule down`: stops the server of this data folder, then kills every VM of it that still runs. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { loadConfig } from "../config.ts";
import { isLocked } from "../host/disk/lock.ts";
import { Paths } from "../host/disk/paths.ts";
import { endAll } from "../host/disk/reaper.ts";
import { isUnderJailUid } from "../vmm/jail/jail-uids.ts";
import { endProcess, findByNonce, isVm } from "../vmm/process.ts";

const pollMs = 50;
/** A server ends so long behind its drain time at the latest. */
export const graceMs = 30_000;

export async function down(): Promise<number> {
  const { dataDir, drainMs, jailUids } = loadConfig();
  if (!existsSync(dataDir)) return nothingRuns(dataDir);
  const hadServer = await stopServer(dataDir, drainMs + graceMs);
  let ended = 0;
  const reap = async (nonce: string, process: { pid: number; startTicks: number }) => {
    if (!(await isVm(process, nonce)) && !isUnderJailUid(jailUids, process)) return;
    await endProcess(process);
    ended++;
  };
  await endAll({ find: findByNonce, reap }, new Paths(dataDir));
  if (ended > 0) console.error(`capsule: ended ${ended} running VM${ended === 1 ? "" : "s"}`);
  return hadServer || ended > 0 ? 0 : nothingRuns(dataDir);
}

function nothingRuns(dataDir: string): number {
  console.error(`capsule: no server and no VM of ${dataDir} runs`);
  return 0;
}

/** Whether one ran. Its VMs run on. */
export async function stopServer(dataDir: string, deadlineMs: number): Promise<boolean> {
  if (!isLocked(dataDir)) return false;
  const pid = Number(readFileSync(join(dataDir, "daemon.pid"), "utf8"));
  if (!Number.isInteger(pid) || pid <= 1) throw new Error(`${dataDir}/daemon.pid does not name the running server`);
  process.kill(pid, "SIGTERM");
  const deadline = performance.now() + deadlineMs;
  while (isLocked(dataDir)) {
    if (performance.now() > deadline) throw new Error(`the server (pid ${pid}) did not stop within ${deadlineMs} ms`);
    await delay(pollMs);
  }
  console.error(`capsule: stopped the server (pid ${pid})`);
  return true;
}
