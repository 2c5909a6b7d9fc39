/**
 * Startup recovery: makes rows, processes and folders agree, at whatever step the last daemon ended. A half-done change is
 * completed where that is safe or was acknowledged already, and undone otherwise. Guests that run are adopted; their agents are
 * waited for behind the start of the server (docs/adr/0034).
 */
import type { Adopted, Host } from "../host/host.ts";
import type { Log } from "../log.ts";
import type { Adoptions } from "./adoptions.ts";
import type { Captures } from "./captures.ts";
import type { Clock } from "./clock.ts";
import type { CapsuleLocks } from "./locks.ts";
import type { Orphans } from "./orphans.ts";
import { recordEnd } from "./stops.ts";
import type { Capsule, CapsuleStore } from "./store.ts";
import type { Transitions } from "./transitions.ts";

export interface RecoveryOptions {
  store: CapsuleStore;
  host: Host;
  locks: CapsuleLocks;
  adoptions: Adoptions;
  transitions: Transitions;
  clock: Clock;
  log: Log;
  orphans: Orphans;
  captures: Captures;
}

export interface Recovered {
  adopted: number;
  lost: number;
  /** Folders without a row. */
  removed: number;
  /** Folders that are in lost+found now. */
  kept: number;
}

interface Recovery extends RecoveryOptions {
  result: Recovered;
  /** The ends of the adoptions; until then each holds its capsule's lock. */
  ends: Promise<void>[];
}

/** Bounds memory; more in parallel is not faster. */
const recoveredAtOnce = 64;
/** A start waits this long for agents, so that most guests are adopted when it listens. */
const agentsMs = 1_000;

/**
 * Brings every row to a stable status, and settles every folder without a row. Afterwards only guests are not adopted yet whose
 * agents have not answered.
 */
export async function recover(options: RecoveryOptions): Promise<Recovered> {
  const { store, adoptions, orphans, clock, log } = options;
  const recovery: Recovery = { ...options, result: { adopted: 0, lost: 0, removed: 0, kept: 0 }, ends: [] };
  const { result, ends } = recovery;
  const waiting = store.all().values();
  const work = async () => {
    for (const row of waiting) await recoverOne(row, recovery);
  };
  await Promise.all(Array.from({ length: recoveredAtOnce }, work));
  for (const { name, settle } of orphans.find()) {
    await settle().then(
      (outcome) => result[outcome]++,
      (error: unknown) => log.error({ err: error, folder: name }, "a folder without a record could not be settled"),
    );
  }
  const late = Promise.withResolvers<void>();
  const cancel = clock.after(agentsMs, late.resolve);
  await Promise.race([Promise.all(ends), late.promise]);
  cancel();
  log.info({ ...result, adopting: adoptions.count }, "recovered");
  return result;
}

async function recoverOne(row: Capsule, recovery: Recovery): Promise<void> {
  const { store, host, transitions } = recovery;
  try {
    switch (row.intent) {
      case "destroy":
        await transitions.destroy(row);
        return;
      case "create": // the create was acknowledged: start again from nothing
        await clearFolder(row, recovery);
        void transitions.boot(row);
        return;
      case "reboot":
        await host.reap(row.id, "gone");
        void transitions.reboot(row);
        return;
      case "resume": // no process of the user has run since, so the checkpoint is still valid
      case "start":
        await host.reap(row.id, memoryOf(row));
        store.unsynced(() => store.clearIntent(row));
        return;
      case "stop":
        return await adopt(row, null, recovery);
      case "pause":
      case "capture":
        return await adopt(row, row.revision, recovery);
      case null:
        if (row.status === "running") await adopt(row, null, recovery);
        else await host.reap(row.id, memoryOf(row)); // such a capsule has no process
    }
  } catch (error) {
    fail(row, error, recovery);
  }
}

/** A capsule without a VM has its memory only when it is paused. */
function memoryOf({ status }: Capsule): "kept" | "gone" {
  return status === "paused" ? "kept" : "gone";
}

/**
 * Makes place for a new start. No create writes a checkpoint, so a folder that has one is newer than a database that was put
 * back: its capsule ran and was paused. Such a folder is kept as one without a row is.
 */
async function clearFolder({ id }: Capsule, { host, log, result }: Recovery): Promise<void> {
  if (!host.lostFound.isSaved("capsules", id)) return await host.remove(id);
  await host.keepLost("capsules", id);
  result.kept++;
  log.warn({ folder: `capsules/${id}` }, "the checkpoint of a capsule that is starting was moved to lost+found");
}

/** Resolves when the capsule's guest is adopted or gone, or when only its agent is waited for. Never rejects. */
function adopt(row: Capsule, saving: number | null, recovery: Recovery): Promise<void> {
  const { store, host, locks, adoptions, captures, ends } = recovery;
  const isAlive = Promise.withResolvers<void>();
  const inDoubt = Promise.withResolvers<void>();
  const signal = adoptions.begin(row.id);
  const adopted = locks.runExclusive(row.id, async () => {
    try {
      if (row.intent === "capture" && (await captures.completed(row, signal, inDoubt.resolve)))
        return adoptions.end(row.id);
      const found = await host.adopt(row.id, saving, signal);
      if (found.kind === "alive") isAlive.resolve();
      await recoverRunning(row, found.kind === "alive" ? await found.settled : found, recovery);
    } catch (error) {
      const endReason = adoptions.endReason(row.id);
      if (endReason !== undefined) await endVm(row, saving, endReason, recovery);
      else if (!signal.aborted) fail(row, error, recovery);
      else if (store.get(row.id)?.intent !== "destroy") return; // the server stops, and its next start adopts the guest
    }
    adoptions.end(row.id);
  });
  ends.push(Promise.race([inDoubt.promise, adopted]));
  return Promise.race([isAlive.promise, inDoubt.promise, adopted]);
}

/** Ends a VM that was not adopted; the checkpoint of a save that had ended is used. */
async function endVm(row: Capsule, saving: number | null, reason: string, recovery: Recovery): Promise<void> {
  const { host } = recovery;
  try {
    await host.reap(row.id, "kept");
    const found = await host.adopt(row.id, saving, new AbortController().signal);
    if (found.kind !== "alive")
      await recoverRunning(row, found.kind === "nothing" ? { ...found, reason } : found, recovery);
  } catch (error) {
    fail(row, error, recovery);
  }
}

function fail(row: Capsule, error: unknown, recovery: Recovery): void {
  const { store, log } = recovery;
  log.error({ err: error, capsule: row.id }, "capsule could not be recovered");
  const now = store.get(row.id);
  if (now === undefined || now.intent === "destroy") return; // the reconciler retries a destroy
  if (now.status === "running" || now.status === "starting") {
    recordLost(now, "it could not be recovered after a restart of the server", recovery);
  }
}

/**
 * For a row in `running`, perhaps with an unacknowledged pause or capture: the guest runs on if it is still there. A stop is
 * completed, since programs may have ended for it.
 */
async function recoverRunning(row: Capsule, found: Adopted, recovery: Recovery): Promise<void> {
  const { store, transitions, result } = recovery;
  const isStopping = row.intent === "stop";
  if (found.kind === "running") {
    const running = row.intent === null || isStopping ? store.get(row.id) : store.clearIntent(row);
    if (running === undefined || running.intent === "destroy") return; // the destroy waits for this lock and ends the guest
    await transitions.run(found.guest, running, true);
    result.adopted++;
    if (isStopping) void transitions.stop(running).catch(() => {}); // it waits for this lock; a destroy may come first
  } else if (isStopping) {
    store.commit(row, "stop");
  } else if (found.kind === "checkpoint" && belongsTo(found, row)) {
    // The checkpoint is durable and the VM is gone: completing the pause loses nothing.
    store.commit(row, "pause");
  } else if (found.kind === "powered_off" || found.kind === "reset") {
    const ended = recordEnd(store, row, { kind: found.kind, reason: "" });
    if (ended?.intent === "reboot") void transitions.reboot(ended);
  } else {
    const reason = "reason" in found ? found.reason : undefined;
    recordLost(row, reason ?? "its VM ended while the server was away", recovery);
  }
}

/** Without an fsync, as after a power cut there may be hundreds: the next start finds a row that another power cut undoes as lost again. */
function recordLost(row: Capsule, errorReason: string, { store, result }: Recovery): void {
  store.unsynced(() => store.commit(row, "fail", { errorReason }));
  result.lost++;
}

/**
 * Whether the checkpoint is of the pause or capture under way. Otherwise the capsule was resumed from it and has run since, so
 * its memory is older than the disk.
 */
function belongsTo({ revision, savedAt }: Extract<Adopted, { kind: "checkpoint" }>, row: Capsule): boolean {
  if (row.intent === null) return false;
  return revision === null ? savedAt >= (row.startedAt ?? 0) : revision === row.revision;
}
