/**
 * Many paused capsules: the time to list them, the time to start with them, and the memory they cost the server. The rows are
 * written into the database of a stopped server, without VMs.
 */

import { CapsuleRows } from "../src/db/capsule-rows.ts";
import { databasePath, openDatabase } from "../src/db/database.ts";
import { TeamRows } from "../src/db/team-rows.ts";
import type { Fixture } from "./fixture.ts";
import { rssMib } from "./process-costs.ts";
import { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

const listed = 1_000;
const paused = 10_000;
const starts = 3;
const warmUps = 20;

export async function records(fixture: Fixture): Promise<void> {
  const { report } = fixture;
  await using service = await Service.start({ CAPSULE_POOL: "off" });
  const without = await restarts(service, () => {});
  report.note("serverStart", without.startsMs, {});
  report.note("serverMemory", without.memoryMib, {});

  await service.restart(() => insertPaused(service.dataDir, "default", listed));
  const list = async () => {
    const capsules = await service.ask<object[]>("GET", "/v1/capsules");
    if (capsules.length !== listed) throw new Error(`${capsules.length} capsules were listed instead of ${listed}`);
  };
  await repeat(warmUps, () => timed(list));
  const lists = await repeat(fixture.rounds(200, 1_000), () => timed(list));
  report.note("list", lists, { tail: { value: summarize(lists).p99 } });

  const teams = paused / listed - 1;
  const withMany = await restarts(service, () => {
    for (let team = 0; team < teams; team++) insertPaused(service.dataDir, `team-${team}`, listed);
  });
  await list();
  const { startsMs, memoryMib } = withMany;
  report.note("startWithRecords", startsMs, { bound: { value: summarize(startsMs).p50 } });
  report.note("memoryWithRecords", memoryMib, { bound: { value: Math.max(...memoryMib) } });
  const bareMib = summarize(without.memoryMib).p50;
  const perThousand = memoryMib.map((mib) => (mib - bareMib) / (paused / 1_000));
  report.note("memoryPerThousand", perThousand, { bound: { value: summarize(perThousand).p50 } });
}

/** Starts the server several times; `prepare` changes the database before the first start. */
async function restarts(service: Service, prepare: () => void): Promise<{ startsMs: number[]; memoryMib: number[] }> {
  const startsMs: number[] = [];
  const memoryMib: number[] = [];
  for (let start = 0; start < starts; start++) {
    startsMs.push(await service.restart(start === 0 ? prepare : undefined));
    memoryMib.push(rssMib(service.pid));
  }
  return { startsMs, memoryMib };
}

function insertPaused(dataDir: string, team: string, count: number): void {
  const database = openDatabase(databasePath(dataDir));
  database.exec("PRAGMA synchronous = OFF"); // their commits are not measured
  const now = Date.now();
  const { id: teamId } = new TeamRows(database).ensure({ id: team, name: team, createdAt: now });
  const rows = new CapsuleRows(database);
  for (let each = 0; each < count; each++) {
    rows.insert({
      id: `cl-bench${team.replace(/\W/g, "")}${each.toString().padStart(8, "0")}`,
      teamId,
      name: null,
      labels: "{}",
      status: "paused",
      revision: 5,
      intent: null,
      template: "minimal",
      storage: null,
      blockedBy: null,
      vcpus: 1,
      memoryMb: 512,
      diskMb: 4_096,
      timeoutSec: 300,
      createdAt: now - each,
      lastUpdated: now,
      startedAt: now,
      lastActiveAt: now,
      errorReason: null,
      onTimeout: "pause",
      lifetimeSec: 0,
      expiresAt: null,
      onExpiry: "destroy",
      retentionSec: 0,
      autoResume: 0,
      network: null,
    });
  }
  database.close();
}
