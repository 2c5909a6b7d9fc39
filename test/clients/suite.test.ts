/**
 * Clients of other languages, directly and through proxies. Each client's script is as its user
 * would write it. CAPSULE_CLIENTS=all: every client and proxy; long: with larger files, more tries and longer silences.
 * CAPSULE_CLIENTS_ROUNDS=2: each scenario twice in a row. Long or with more than one round, a process per core keeps it busy.
 */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, type TestContext, test } from "node:test";
import { Client } from "../client.ts";
import { Server } from "../server.ts";
import { abortChanges, aborters, RunningAborter } from "./aborts.ts";
import { BusyCores, isBusy, isLong, rounds } from "./clients-form.ts";
import { clientOf, examples, runExample } from "./examples.ts";
import { documentedIdleSec, measureIdleSec, statedIdle } from "./idle.ts";
import { type KnownClient, knownClients, missing } from "./known-clients.ts";
import { pourGibibyte, type Refused, SlowWrite, withFlatMemory } from "./memory.ts";
import { passFile } from "./passing.ts";
import { type KnownProxy, proxies, RunningProxy } from "./proxies.ts";
import { runScenario, type Scenario } from "./scenarios.ts";
import { silentSockets } from "./silence.ts";

const mebibyte = 1024 * 1024;
const timeout = 1_200_000 * rounds;
const form = "multipart/form-data; boundary=b";

let server: Server;
let scenario: Scenario;
let load: BusyCores | undefined;
const folder = mkdtempSync(join(tmpdir(), "capsule-clients-"));

before(async () => {
  // A capsule of 200 vCPUs is within its own limit, and beyond that of a team: 429.
  const env = { CAPSULE_TRUST_PROXY: "loopback", CAPSULE_VCPUS_MAX: "255", CAPSULE_RUNNING_VCPUS_MAX: "150" };
  server = await Server.start({ env });
  const bytes = randomBytes((isLong ? 200 : 20) * mebibyte);
  const file = { path: join(folder, "file"), sha256: createHash("sha256").update(bytes).digest("hex") };
  const refusedFile = join(folder, "refused");
  writeFileSync(file.path, bytes);
  writeFileSync(refusedFile, bytes.subarray(0, 20 * mebibyte));
  if (isBusy) load = new BusyCores();
  const client = await Client.connect(server.url, server.apiKey);
  scenario = { client, url: server.url, logFile: server.log.file, file, refusedFile, tries: isLong ? 200 : 3 };
});

after(async () => {
  scenario?.client.close();
  await load?.[Symbol.asyncDispose]();
  await server?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

/** As often as the form asks, each time to the end before the next. */
async function runRounds(t: TestContext, each: KnownClient, of: Scenario): Promise<void> {
  for (let round = 1; round <= rounds; round++) {
    await t.test(`round ${round} of ${rounds}`, { timeout }, () => runScenario(each, of));
  }
}

describe("clients", { concurrency: 3 }, () => {
  for (const each of knownClients)
    test(each.name, { skip: missing(each), timeout }, (t) => runRounds(t, each, scenario));
});

describe("changes that are broken off", { concurrency: 2 }, () => {
  for (const each of aborters) {
    test(each.name, { skip: missing(each), timeout }, async () => {
      const client = scenario.client.as(
        await server.createKey(`aborts-${each.name.replace(/\W+/g, "-").toLowerCase()}`),
      );
      await using aborter = new RunningAborter(each, server.url, client.key);
      await abortChanges(aborter, client);
    });
  }
});

describe("examples of docs/CLIENTS.md", { concurrency: 2 }, () => {
  let key: string;
  before(async () => {
    key = await server.createKey("examples");
  });
  after(async () => {
    const { json } = await scenario.client.as(key).expect(200, "GET", "/v1/capsules");
    assert.deepEqual(json, [], "they leave nothing behind");
  });
  for (const each of examples()) {
    const language = clientOf(each);
    test(language.name, { skip: missing(language), timeout }, async () => {
      const home = mkdtempSync(join(folder, "example-"));
      const output = await runExample(each, home, { CAPSULE_URL: server.url, CAPSULE_API_KEY: key });
      assert.match(output, /42[\s\S]*from a file/);
    });
  }
});

/**
 * The bounds of src/http/refused-bodies.ts at work in a real process, beside a streamed write that is taken. It reads on
 * for 8 connections of an address, which read their answer for sure; further ones may be reset before.
 */
describe("the memory stays flat while 200 clients are refused 1 GiB each at once", () => {
  const [clients, readOnPerAddress] = [200, 8];
  const kinds: [name: string, status: number, refused: (key: string) => Refused][] = [
    ["of JSON", 401, () => ({ path: "/v1/capsules", key: "capk_wrong", type: "application/json" })],
    ["as a file", 404, (key) => ({ path: "/v1/capsules/cl-none/files/write", key, type: form })],
    ["as a streamed file", 404, (key) => ({ path: "/v1/capsules/cl-none/files/stream/write", key, type: form })],
  ];
  for (const [name, status, refused] of kinds) {
    for (const addresses of [clients / readOnPerAddress, 1]) {
      test(`${name}, from ${addresses} addresses`, { timeout }, async () => {
        await using capsule = await scenario.client.capsule({ memory_mb: 256 });
        await withFlatMemory(server, async () => {
          const slow = new SlowWrite(scenario.client, capsule.path);
          const read: (number | undefined)[] = [];
          const refuse = async (_: unknown, index: number) => {
            const from = `127.0.1.${1 + (index % addresses)}`;
            read.push(await pourGibibyte(server.url, refused(scenario.client.key), from));
            slow.send(randomBytes(65_536));
          };
          await Promise.all(Array.from({ length: clients }, refuse));
          await slow.end();
          const answers = read.filter((each) => each !== undefined);
          assert.deepEqual([...new Set(answers)], [status]);
          assert.ok(answers.length >= addresses * readOnPerAddress, `${answers.length} clients read their answer`);
        });
      });
    }
  }
});

const [httpClient, socketClient] = ["curl", "ws"].map((name) => knownClients.find((each) => each.name === name)!);
/** A silent connection must outlive it; the service speaks every 30 seconds, and a busy machine some later. */
const readTimeoutSec = isLong ? 60 : 45;
const silenceMs = isLong ? 600_000 : 55_000;
const passedBytes = (isLong ? 1024 : 64) * mebibyte;

/** While the silences last, the proxies' other tests run one proxy after the other. */
describe("proxies", { concurrency: 2 }, () => {
  const present = proxies.filter((kind) => missing(kind) === false);
  const running = new Map<KnownProxy, RunningProxy>();
  const urlOf = (kind: KnownProxy) => running.get(kind)!.url;
  before(async () => {
    for (const kind of present) {
      running.set(kind, await RunningProxy.start(kind, server.url, readTimeoutSec));
    }
  });
  after(() => Promise.all([...running.values()].map((proxy) => proxy[Symbol.asyncDispose]())));

  describe("silent connections outlive the read time-out", { concurrency: true }, () => {
    for (const kind of present) {
      test(`of ${kind.name}`, { timeout }, () => silentSockets(scenario.client, urlOf(kind), silenceMs));
    }
  });

  describe("idle connections are kept as long as docs/operations/expose.md says", { concurrency: true }, () => {
    const limits = present.map((kind) => ({ kind, sec: statedIdle(kind).maxSec ?? Number.POSITIVE_INFINITY }));
    for (const { kind, sec } of limits.filter(({ sec }) => sec < (isLong ? Number.POSITIVE_INFINITY : 20))) {
      test(`by ${kind.name}`, { timeout }, async () => {
        const measured = await measureIdleSec(kind);
        const documentedSec = documentedIdleSec(kind);
        if (documentedSec !== undefined) assert.match(statedIdle(kind).said, new RegExp(`^${documentedSec} s\\b`));
        assert.ok(measured > (documentedSec ?? sec) / 2 && measured < sec + 15, `${measured} s, and not ${sec} s`);
      });
    }
  });

  for (const kind of proxies)
    describe(kind.name, { skip: missing(kind), concurrency: true }, () => {
      for (const each of [httpClient!, socketClient!]) {
        test(`${each.name} runs its scenario`, { skip: missing(each), timeout }, (t) =>
          runRounds(t, each, {
            ...scenario,
            url: urlOf(kind),
            tries: kind.losesRefusals ? 0 : scenario.tries,
            losesRefusals: kind.losesRefusals,
            hasProxy: true,
            hidesAborts: kind.hidesAborts,
          }),
        );
      }

      test("a file is passed on as it arrives, both ways", { timeout }, () => {
        const proxy = running.get(kind)!;
        const passing = { client: scenario.client, url: proxy.url, sizeBytes: passedBytes };
        return withFlatMemory(server, () => passFile({ ...passing, keptBytes: () => proxy.writtenBytes() }));
      });

      const address = outsideAddress();
      const alone = address === undefined ? "this machine has no address but its loopback" : false;
      test("the caller's address is known, whatever the caller says", { skip: alone, timeout }, async () => {
        const { id } = (await scenario.client.expect(201, "POST", "/v1/capsules", { json: { memory_mb: 256 } })).json;
        const headers = { "x-api-key": scenario.client.key, "x-forwarded-for": "203.0.113.9" };
        const gone = await fetch(`http://${address}:${new URL(urlOf(kind)).port}/v1/capsules/${id}`, {
          method: "DELETE",
          headers,
        });
        assert.equal(gone.status, 204);
        const { entries } = (await scenario.client.expect(200, "GET", `/v1/audit?capsule=${id}`)).json;
        assert.equal(entries.find((each: { action: string }) => each.action === "capsule.destroy").address, address);
      });
    });
});

function outsideAddress(): string | undefined {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return all.find(({ family, internal }) => family === "IPv4" && !internal)?.address;
}
