/** Answers of the largest size, of control characters, which grow sixfold as JSON: the server's memory and its event loop. */
import assert from "node:assert/strict";
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { join } from "node:path";
import { test } from "node:test";

const rssLimitBytes = 600 << 20;
/** Characters of the largest item, a process with 128 KiB of arguments. */
const itemChars = 6 * 32 * 4_096;
/** An item of each answer, in a turn of the event loop and until its end is noted in the next one; a whole listing has 88. */
const encodedLimit = 70 * itemChars;

interface Started {
  port: number;
  capsules: { id: string; key: string }[];
}

interface Figures {
  rssMaxBytes: number;
  /** Characters of JSON in one turn of the event loop. */
  encodedMax: number;
  busyMaxMs: number;
  delayMaxMs: number;
  /** Node's, such as about a leak of listeners. */
  warnings: string[];
}

type Ask = (at: number, method: string, path: string, body?: object) => Promise<IncomingMessage>;

async function withServer(attack: (ask: Ask, teams: number) => Promise<void>) {
  const server = fork(join(import.meta.dirname, "../../test/fakes/large-answers.ts"));
  const { signal } = abortOnExit(server);
  try {
    const [{ port, capsules }] = (await once(server, "message", { signal })) as [Started];
    const ask: Ask = async (at, method, path, body) => {
      const { id, key } = capsules[at]!;
      const headers = { "x-api-key": key, "content-type": "application/json" };
      const call = request({ port, method, path: `/v1/capsules/${id}/${path}`, headers, agent: false });
      call.end(body === undefined ? undefined : JSON.stringify(body));
      const [response] = (await once(call, "response")) as [IncomingMessage];
      response.on("error", () => {});
      return response;
    };
    await attack(ask, capsules.length);
    return await figuresOf(server);
  } finally {
    server.kill();
  }
}

/** A wait for a message of a server that has ended fails at once. */
function abortOnExit(server: ChildProcess): AbortController {
  const controller = new AbortController();
  server.once("exit", () => controller.abort(new Error("the server has ended")));
  return controller;
}

async function figuresOf(server: ChildProcess): Promise<Figures> {
  server.send("figures");
  const [figures] = (await once(server, "message")) as [Figures];
  return figures;
}

const kinds: [method: string, path: string, body?: object][] = [
  ["POST", "files/list", { path: "/huge" }],
  ["GET", "processes"],
  ["POST", "exec", { cmd: "hang", timeout: 0 }],
];

for (const [method, path, body] of kinds) {
  test(`four teams that ask for ${path} eight times each and do not read`, async (t) => {
    const statuses: number[] = [];
    const figures = await withServer(async (ask, teams) => {
      const asked = Array.from({ length: 8 * teams }, (_, i) => ask(i % teams, method, path, body));
      for (const response of await Promise.all(asked)) {
        statuses.push(response.statusCode as number);
        if (response.statusCode === 503 && path !== "exec")
          assert.match(response.headers["retry-after"] ?? "", /^\d+$/);
      }
    });
    const [delay, busy] = [figures.delayMaxMs, figures.busyMaxMs].map(Math.round);
    t.diagnostic(
      `${path}: ${Math.round(figures.rssMaxBytes / 2 ** 20)} MiB, event loop delayed ${delay} ms, busy ${busy} ms, ${figures.encodedMax} characters of JSON in a turn`,
    );
    assert.deepEqual([...new Set(statuses)].sort(), [200, 503]);
    assert.ok(figures.rssMaxBytes < rssLimitBytes, `${Math.round(figures.rssMaxBytes / 2 ** 20)} MiB`);
    assertNotStalled(figures);
    assert.deepEqual(figures.warnings, []);
  });
}

function assertNotStalled({ encodedMax }: Figures): void {
  assert.ok(encodedMax > 0 && encodedMax <= encodedLimit, `${encodedMax} characters of JSON in one turn`);
}

test("a client that reads gets all of the largest answers, and others are served meanwhile", async () => {
  const figures = await withServer(async (ask) => {
    for (const [method, path, body] of kinds) {
      const response = await ask(0, method, path, body);
      let bytes = 0;
      for await (const chunk of response) bytes += (chunk as Buffer).length;
      assert.equal(response.statusCode, 200);
      assert.equal(String(bytes), response.headers["content-length"]);
      assert.ok(bytes > 60e6, `${path}: ${bytes}`);
    }
  });
  assertNotStalled(figures);
});
