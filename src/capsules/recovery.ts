/**
 * Startup recovery: makes rows, processes and folders agree, at whatever step the last daemon ended. A half-done change is
 * completed where that is safe or was acknowledged already, and undone otherwise.
 */
import type { Adopted, Host } from "../host/host.ts";
import type { Log } from "../log.ts";
import type { Orphans } from "./orphans.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";

export interface RecoveryOptions {
  store: CapsuleStore;
  host: Host;
  transitions: Transitions;
  log: Log;
  orphans: Orphans;
}

export interface Recovered {
  adopted: number;
  lost: number;
  /** Folders without a row. */
  removed: number;
  kept: number;
}

/** Bounds memory; more in parallel is not faster. */
const recoveredAtOnce = 64;

/** Brings every row to a stable status, and settles every folder without a row. */
export async function recover(options: RecoveryOptions): Promise<Recovered> {
  const { store, orphans, log } = options;
  const result: Recovered = { adopted: 0, lost: 0, removed: 0, kept: 0 };
  const waiting = store.all().values();
  const work = async () => {
    for (const row of waiting) await recoverOne(row, options, result);
  };
  await Promise.all(Array.from({ length: recoveredAtOnce }, work));
  for (const { name, settle } of orphans.find()) {
    await settle().then(
      (outcome) => result[outcome]++,
      (error: unknown) => log.error({ err: error, folder: name }, "a folder without a record could not be settled"),
    );
  }
  log.info(result, "recovered");
  return result;
}

async function recoverOne(row: Capsule, options: RecoveryOptions, result: Recovered): Promise<void> {
  const { store, host, transitions, log } = options;
  try {
    switch (row.intent) {
      case "destroy":
        await transitions.destroy(row);
        return;
      case "create": // the create was acknowledged: start again from nothing
        await host.remove(row.id);
        void transitions.boot(row);
        return;
      case "resume": // no process of the user has run since, so the checkpoint is still valid
        await host.reap(row.id);
        store.clearIntent(row);
        return;
      case "pause":
      case "capture":
        return await recoverRunning(row, await host.adopt(row.id, row.revision), options, result);
      case null:
        if (row.status === "running") await recoverRunning(row, await host.adopt(row.id, null), options, result);
        else await host.reap(row.id); // paused, stopped, error: such a capsule has no process
    }
  } catch (error) {
    log.error({ err: error, capsule: row.id }, "capsule could not be recovered");
    const now = store.get(row.id);
    if (now === undefined || now.intent === "destroy") return; // the reconciler retries a destroy
    if (now.status === "running" || now.status === "starting") {
      store.commit(now, "fail", { errorReason: "it could not be recovered after a restart of the server" });
      result.lost++;
    }
  }
}

/** For a row in `running`, perhaps with an unacknowledged pause or capture: the guest runs on if it is still there. */
async function recoverRunning(row: Capsule, found: Adopted, o: RecoveryOptions, result: Recovered): Promise<void> {
  if (found.kind === "running") {
    const running = row.intent === null ? row : o.store.clearIntent(row);
    if (running !== undefined) await o.transitions.adopt(running, found.guest);
    result.adopted++;
  } else if (found.kind === "checkpoint" && belongsTo(found, row)) {
    // The checkpoint is durable and the VM is gone: completing the pause loses nothing.
    o.store.commit(row, "pause");
  } else if (found.kind === "powered_off") {
    o.store.commit(row, "halt");
  } else {
    const reason = "reason" in found ? found.reason : undefined;
    o.store.commit(row, "fail", { errorReason: reason ?? "its VM ended while the server was away" });
    result.lost++;
  }
}

/**
 * Whether the checkpoint is of the pause or capture under way. Otherwise the capsule was resumed from it and has run since, so
 * its memory is older than the disk.
 */
function belongsTo({ revision, savedAt }: Extract<Adopted, { kind: "checkpoint" }>, row: Capsule): boolean {
  if (row.intent === null) return false;
  return revision === null ? savedAt >= (row.startedAt ?? 0) : revision === row.revision;
}
