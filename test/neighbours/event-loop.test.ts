/**
 * One team sends, on 64 connections, the dearest requests that its limits allow. Another team's requests take some
 * milliseconds; the bound is one that only a line of all requests for the event loop misses.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { Server } from "../server.ts";
import { Flood, type Round } from "./flood.ts";

const connections = 64;
const boundMs = 500;
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
      await using flood = await Flood.begin({ url: server.url, key: red.key, connections, round });
      const [getMs, execMs]: [number[], number[]] = [[], []];
      for (let look = 0; look < looks; look++) {
        getMs.push(await timed(() => blue.expect(200, "GET", bystander.path)));
        execMs.push(await timed(() => bystander.run("true")));
      }
      t.diagnostic(
        `GET ${shown(getMs)}; exec ${shown(execMs)}; answers of the others: ${JSON.stringify(await flood.end())}`,
      );
      assert.ok(median(getMs) < boundMs, `a GET took ${shown(getMs)}`);
      assert.ok(median(execMs) < boundMs, `an exec took ${shown(execMs)}`);
    });
  }
});

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
