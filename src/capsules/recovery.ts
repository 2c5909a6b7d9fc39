/**
 * After a start: makes rows, processes and folders agree again, whatever moment the last daemon ended at. What was half
 * done is finished where the client was already told so or the way forward is safe, and undone where it is not.
 */
import type { Adopted, Host } from "../host/host.ts";
import type { Reconciler } from "./reconciler.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Log, Transitions } from "./transitions.ts";

export interface RecoveryOptions {
  store: CapsuleStore;
  host: Host;
  transitions: Transitions;
  log: Log;
  reconciler: Reconciler;
}

export interface Recovered {
  adopted: number;
  lost: number;
  removed: number;
}

/** More at once would cost memory and bring no speed. */
const recoveredAtOnce = 64;

/** Every row to a state it can rest in; every folder without a row away. */
export async function recover(options: RecoveryOptions): Promise<Recovered> {
  const { store, reconciler, log } = options;
  const result: Recovered = { adopted: 0, lost: 0, removed: 0 };
  const waiting = store.all().values();
  const work = async () => {
    for (const row of waiting) await recoverOne(row, options, result);
  };
  await Promise.all(Array.from({ length: recoveredAtOnce }, work));
  for (const { name, remove } of reconciler.orphans()) {
    await remove().then(
      () => result.removed++,
      (error: unknown) => log.error({ err: error, folder: name }, "a folder without a record could not be removed"),
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
      case "create": // accepted, so it is owed: begin again from nothing
        await host.remove(row.id);
        void transitions.boot(row, false);
        return;
      case "resume": // no process of the user has run since, so the checkpoint is as good as before
        await host.reap(row.id);
        store.clearIntent(row);
        return;
      case "pause":
      case "capture":
        return await recoverRunning(row, await host.adopt(row.id), options, result);
      case null:
        if (row.status === "running") await recoverRunning(row, await host.adopt(row.id), options, result);
        else await host.reap(row.id); // paused, stopped, error: no process belongs to it
    }
  } catch (error) {
    log.error({ err: error, capsule: row.id }, "capsule could not be recovered");
    const now = store.get(row.id);
    if (now === undefined || now.intent === "destroy") return; // the reconciler goes on with it
    if (now.status === "running" || now.status === "starting") {
      store.commit(now, "fail", { errorReason: "it could not be recovered after a restart of the server" });
      result.lost++;
    }
  }
}

/** It was running, perhaps half-way into a pause or a capture nobody was told of: let it run on. */
async function recoverRunning(row: Capsule, found: Adopted, o: RecoveryOptions, result: Recovered): Promise<void> {
  if (found.kind === "running") {
    const running = row.intent === null ? row : o.store.clearIntent(row);
    if (running !== undefined) await o.transitions.adopt(running, found.guest);
    result.adopted++;
  } else if (found.kind === "checkpoint" && row.intent !== null) {
    // The pause had reached the disk, and the VM is gone: nothing is lost by finishing it. Without such an intent the
    // checkpoint is one that it was resumed from, and older than its disk.
    o.store.commit(row, "pause");
  } else if (found.kind === "powered_off") {
    o.store.commit(row, "halt");
  } else {
    o.store.commit(row, "fail", { errorReason: found.reason ?? "its VM ended while the server was away" });
    result.lost++;
  }
}
