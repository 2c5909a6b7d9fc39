/**
 * What other languages' clients make of the service, and proxies in front of it. Each client's script is as its user
 * would write it. CAPSULE_CLIENTS=all: every client and proxy; long: with larger files, more tries and longer silences.
 */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import { Server } from "../server.ts";
import { proxies, RunningProxy } from "./proxies.ts";
import { silentSockets } from "./silence.ts";
import { type Story, tell } from "./stories.ts";
import { isLong, missing, zoo } from "./zoo.ts";

const mebibyte = 1024 * 1024;
const timeout = 1_200_000;

let server: Server;
let story: Story;
const folder = mkdtempSync(join(tmpdir(), "capsule-clients-"));

before(async () => {
  server = await Server.start({ env: { CAPSULE_TRUST_PROXY: "loopback" } });
  const bytes = randomBytes((isLong ? 200 : 20) * mebibyte);
  const file = { path: join(folder, "file"), sha256: createHash("sha256").update(bytes).digest("hex") };
  const refusedFile = join(folder, "refused");
  writeFileSync(file.path, bytes);
  writeFileSync(refusedFile, bytes.subarray(0, 20 * mebibyte));
  const client = await Client.connect(server.url, server.apiKey);
  story = { client, url: server.url, file, refusedFile, tries: isLong ? 200 : 3 };
});

after(async () => {
  story?.client.close();
  await server?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

describe("clients", { concurrency: 3 }, () => {
  for (const each of zoo) test(each.name, { skip: missing(each), timeout }, () => tell(each, story));
});

/** The bounds of src/http/refused-bodies.ts at work in a real process. */
test("the memory stays flat while 200 clients are refused 1 GiB each at once", { timeout }, async () => {
  const beforeKb = residentKb();
  let mostKb = beforeKb;
  const gauge = setInterval(() => {
    mostKb = Math.max(mostKb, residentKb());
  }, 100);
  const { port } = new URL(server.url);
  const refuse = () =>
    new Promise<void>((resolve) => {
      const headers = { "x-api-key": "capk_wrong", "content-type": "application/json", "content-length": 2 ** 30 };
      const request = http.request({ port, method: "POST", path: "/v1/capsules", headers, agent: false });
      const chunk = Buffer.alloc(65_536);
      const pour = () => {
        while (!request.destroyed && request.write(chunk));
      };
      request
        .on("drain", pour)
        .on("error", () => {})
        .on("close", resolve)
        .on("response", (answer) => answer.resume());
      pour();
    });
  await Promise.all(Array.from({ length: 200 }, refuse));
  clearInterval(gauge);
  assert.ok(mostKb - beforeKb < 128 * 1024, `grew by ${mostKb - beforeKb} KiB`);
});

function residentKb(): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))?.[1]);
}

const [httpTeller, socketTeller] = ["curl", "ws"].map((name) => zoo.find((each) => each.name === name)!);
/** A silent connection must outlive it; the service speaks every 30 seconds. */
const readTimeoutSec = isLong ? 60 : 35;
const silenceMs = isLong ? 600_000 : 45_000;

for (const kind of proxies) {
  describe(kind.name, { skip: missing(kind), concurrency: true }, () => {
    let proxy: RunningProxy;
    before(async () => {
      proxy = await RunningProxy.start(kind, server.url, readTimeoutSec);
    });
    after(() => proxy?.[Symbol.asyncDispose]());

    for (const teller of [httpTeller!, socketTeller!]) {
      test(`${teller.name} tells its story`, { skip: missing(teller), timeout }, () =>
        tell(teller, {
          ...story,
          url: proxy.url,
          tries: kind.losesRefusals ? 0 : story.tries,
          hidesAborts: kind.hidesAborts,
        }),
      );
    }

    test("silent connections outlive its read time-out", { timeout }, () =>
      silentSockets(story.client, proxy.url, silenceMs),
    );

    test("an upload is passed on as it arrives", { timeout }, async () => {
      await using capsule = await story.client.capsule({ memory_mb: 256 });
      const chunk = Buffer.alloc(mebibyte, "x");
      const path = `/v1/capsules/${capsule.id}/files/stream/write`;
      const headers = { "x-api-key": story.client.key, "content-type": "multipart/form-data; boundary=b" };
      const request = http.request(proxy.url + path, { method: "POST", headers });
      const answered = once(request, "response");
      request.write('--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n/root/big\r\n');
      request.write('--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n');
      for (let sent = 0; sent < 8; sent++) request.write(chunk);
      await eventually("half of it is in the guest", async () => {
        const json = { cmd: "sh", args: ["-c", "cat /root/.capsule-* | wc -c"] };
        const { stdout } = (await story.client.expect(200, "POST", `/v1/capsules/${capsule.id}/exec`, { json })).json;
        return Number(stdout) >= 6 * mebibyte;
      });
      request.end("\r\n--b--\r\n");
      const [{ statusCode }] = await answered;
      assert.equal(statusCode, 204);
    });

    const address = outsideAddress();
    const alone = address === undefined ? "this machine has no address but its loopback" : false;
    test("the caller's address is known, whatever the caller says", { skip: alone, timeout }, async () => {
      const { id } = (await story.client.expect(201, "POST", "/v1/capsules", { json: { memory_mb: 256 } })).json;
      const headers = { "x-api-key": story.client.key, "x-forwarded-for": "203.0.113.9" };
      const gone = await fetch(`http://${address}:${proxy.port}/v1/capsules/${id}`, { method: "DELETE", headers });
      assert.equal(gone.status, 204);
      const { entries } = (await story.client.expect(200, "GET", `/v1/audit?capsule=${id}`)).json;
      assert.equal(entries.find((each: { action: string }) => each.action === "capsule.destroy").address, address);
    });
  });
}

function outsideAddress(): string | undefined {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return all.find(({ family, internal }) => family === "IPv4" && !internal)?.address;
}
