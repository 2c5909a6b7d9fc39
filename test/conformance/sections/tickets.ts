/** All WebSockets: tickets for clients that cannot set headers, and PINGs. */
import assert from "node:assert/strict";
import { after, before } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { TestCapsule } from "../../client.ts";
import { section, test } from "../conforms.ts";
import { client, skewMs } from "../service.ts";
import { TestSocket } from "../socket.ts";

export const tickets = section(import.meta, "WebSockets of every kind", () => {
  let capsule: TestCapsule;
  let suffixes: string[];
  /** Bought first and used last, since real time must pass. */
  let unused: { ticket: string; expiresAt: number };
  before(async () => {
    capsule = await client.capsule();
    const { json } = await client.expect(201, "POST", "/v1/ws-tickets", { json: { path: `${capsule.path}/pty` } });
    unused = { ticket: json.ticket, expiresAt: Date.parse(json.expires_at) };
    const sleeper = await capsule.exec({ cmd: "sleep", args: ["7001"], background: true });
    suffixes = ["exec/stream", "pty", `processes/${sleeper.json.tag}/stream`];
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  async function ticket(suffix: string): Promise<string> {
    const { json } = await client.expect(201, "POST", "/v1/ws-tickets", {
      json: { path: `${capsule.path}/${suffix}` },
    });
    assert.ok(Date.parse(json.expires_at) > Date.now());
    return json.ticket;
  }

  const upgrade = async (suffix: string) => (await client.upgrade(`${capsule.path}/${suffix}`, { key: null })).status;

  test("a one-time ticket opens the socket that it was made for, once, and no other", async () => {
    for (const suffix of suffixes) {
      const bought = await ticket(suffix);
      await using socket = await TestSocket.open(capsule, `${suffix}?ticket=${bought}`, {});
      if (suffix === "pty") socket.say({ type: "start", cmd: "true" });
      else if (suffix === "exec/stream") socket.say({ type: "start", cmd: "true" });
      await socket.next(suffix === "pty" ? "started" : "start");
      assert.equal(await upgrade(`${suffix}?ticket=${bought}`), 401, "a second time");
      for (const other of suffixes.filter((each) => each !== suffix)) {
        assert.equal(await upgrade(`${other}?ticket=${await ticket(suffix)}`), 401, `${other} by one for ${suffix}`);
      }
      for (const wrong of ["", "wst_0", `${await ticket(suffix)}0`]) {
        assert.equal(await upgrade(`${suffix}?ticket=${wrong}`), 401, wrong);
      }
    }
    const { status } = await client.call("GET", `${capsule.path}?ticket=${await ticket("pty")}`, { key: null });
    assert.equal(status, 401, "no door but sockets");
  });

  test("PINGs are answered, also before the first message", async () => {
    for (const suffix of suffixes) {
      await using socket = await TestSocket.open(capsule, suffix);
      const answered = new Promise<Buffer>((resolve) => socket.socket.once("pong", resolve));
      socket.socket.ping("are you there?");
      assert.equal((await answered).toString(), "are you there?", suffix);
    }
  });

  test("a ticket that was not used within 30 seconds opens nothing", async () => {
    const leftMs = unused.expiresAt - Date.now();
    assert.ok(leftMs <= 30_000, `${leftMs} ms are left`);
    await delay(Math.max(0, leftMs) + skewMs + 100);
    assert.equal(await upgrade(`pty?ticket=${unused.ticket}`), 401);
    await using _socket = await TestSocket.open(capsule, `pty?ticket=${await ticket("pty")}`, {});
  });
});
