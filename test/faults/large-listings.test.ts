/**
 * Listings as large as the limits allow, of names whose JSON is six times as long, of capsules of four teams at once: the
 * daemon's memory stays bounded, and other capsules keep working.
 */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import type { Reply, TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { startForging } from "./forged-frames.ts";
import { World } from "./world.ts";

const teams = ["one", "two", "three", "four"];
const daemonMaxBytes = 600 << 20;
/** A listing's length in JSON, at least. */
const jsonBytes = 90_000_000;
/** A request sent right before the agent was frozen is never answered. The time is doubled each time, for a slow machine. */
const askAgainMs = 20_000;
const deadlineMs = 400_000;

let world: World;
before(async () => {
  const errors = [/"message":"too many large answers wait for their clients/];
  world = await World.start({ env: { CAPSULE_SILENCE_MS: "60000" }, errors });
});
after(() => world[Symbol.asyncDispose]());

function peakBytes(): number {
  return 1024 * Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${world.server.pid}/status`, "utf8"))?.[1]);
}

const list = ({ client, path }: TestCapsule, deadlineMs: number) =>
  client.call("POST", `${path}/files/list`, { json: { path: "/root" }, signal: AbortSignal.timeout(deadlineMs) });

/** Resolves with the first listing on which the forging program has answered. */
function firstListing(capsule: TestCapsule): Promise<Reply> {
  const isLie = ({ status, bytes }: Reply) => status !== 200 || bytes.length > jsonBytes;
  let waitMs = askAgainMs;
  const ask = async () => {
    const reply = await list(capsule, waitMs).catch(() => undefined);
    if (reply === undefined) waitMs *= 2;
    return reply !== undefined && isLie(reply) ? reply : undefined;
  };
  return waitFor("a listing at the limits", ask, { deadlineMs });
}

test("listings at the limits of four teams at once: the daemon stays below 600 MiB", {
  timeout: 1_800_000,
}, async (t) => {
  const bystander = await world.client.capsule();
  const { json: limits } = await world.client.expect(200, "GET", "/v1/limits");
  assert.equal(limits.listing_max_bytes, 16 << 20, "what the forging program sends");
  const forging = await Promise.all(
    teams.map(async (team) => {
      const capsule = await world.client.as(await world.server.createKey(team)).capsule();
      await startForging(capsule, "listings_at_the_limits");
      return capsule;
    }),
  );
  writeFileSync(`/proc/${world.server.pid}/clear_refs`, "5"); // begins the peak anew
  for (const capsule of forging) {
    const { status, text } = await firstListing(capsule);
    const { error_reason } = await capsule.view();
    assert.equal(status, 200, `${text.slice(0, 500)}; ${error_reason}`);
  }
  const alone = peakBytes();
  let isOver = false;
  const replies = Promise.all(forging.map((capsule) => list(capsule, deadlineMs))).finally(() => {
    isOver = true;
  });
  let commands = 0;
  for (; !isOver; commands++) assert.equal(await bystander.sh(`echo ${commands}`), String(commands));
  const statuses = (await replies).map((reply) => reply.status);
  assert.ok(commands > 0 && statuses.includes(200), statuses.join());
  for (const status of statuses) assert.ok([200, 503].includes(status), statuses.join());
  t.diagnostic(`${alone >> 20} MiB for one at a time, ${peakBytes() >> 20} MiB for all; ${statuses.join()}`);
  assert.ok(peakBytes() < daemonMaxBytes, `${alone >> 20} MiB for one at a time, ${peakBytes() >> 20} MiB for all`);
});
