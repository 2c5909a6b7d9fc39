/**
 * One team sends, on 64 connections, the dearest requests that its limits allow. Another team's requests take some
 * milliseconds; the bound, 20 times what they take alone and at least 500 ms, is one that only a line of all requests for the
 * event loop misses.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { Server } from "../server.ts";
import { Flood, type Round } from "./flood.ts";

const connections = 64;
const boundMs = 500;
const boundFactor = 20;
const looks = 30;

let server: Server;
let red: Client;
let blue: Client;
let bystander: TestCapsule;
before(async () => {
  server = await Server.start({ env: { CAPSULE_POOL: "off" } });
  red = await Client.connect(server.url, server.apiKey);
  blue = red.as(await server.createKey("blue"));
  bystander = await blue.capsule();
});
after(async () => {
  red?.close();
  blue?.close();
  await server?.[Symbol.asyncDispose]();
});

/** 1 MB, refused for each of its words. */
const refused = `{"args":[${"0,".repeat(500_000)}0]}`;
/** By the path of a capsule of the team. */
const floods: Record<string, (path: string) => Round> = {
  "whole pages of the audit log": () => [{ method: "GET", path: "/v1/audit?limit=1000" }],
  "changes of its keys": () => [
    { method: "POST", path: "/v1/keys", body: '{"name":"made"}' },
    { method: "DELETE", path: "/v1/keys/{id}" },
  ],
  "large bodies that are refused": (path) => [{ method: "POST", path: `${path}/exec`, body: refused }],
};

describe("beside a team that sends", { timeout: 300_000 }, () => {
  for (const [what, roundOf] of Object.entries(floods)) {
    test(`${what}, another team's requests are served between them`, async (t) => {
      await using own = await red.capsule();
      const round = roundOf(own.path);
      const alone = await look();
      await using flood = await Flood.begin({ url: server.url, key: red.key, connections, round });
      const { getMs, execMs } = await look();
      t.diagnostic(
        `GET ${shown(getMs)}; exec ${shown(execMs)}; answers of the others: ${JSON.stringify(await flood.end())}`,
      );
      assert.ok(median(getMs) < boundOf(alone.getMs), `a GET took ${shown(getMs)}`);
      assert.ok(median(execMs) < boundOf(alone.execMs), `an exec took ${shown(execMs)}`);
    });
  }
});

async function look(): Promise<{ getMs: number[]; execMs: number[] }> {
  const [getMs, execMs]: [number[], number[]] = [[], []];
  for (let count = 0; count < looks; count++) {
    getMs.push(await timed(() => blue.expect(200, "GET", bystander.path)));
    execMs.push(await timed(() => bystander.run("true")));
  }
  return { getMs, execMs };
}

function boundOf(aloneMs: readonly number[]): number {
  return Math.max(boundMs, boundFactor * median(aloneMs));
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

function shown(values: readonly number[]): string {
  return `${median(values).toFixed(1)} ms in the median, ${Math.max(...values).toFixed(1)} ms at most`;
}
