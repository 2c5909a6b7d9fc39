/** Tests with a server of their own: a host that cannot start VMs, and a restart of the service. */
import assert from "node:assert/strict";
import { copyFile, readdir, rename } from "node:fs/promises";
import { join } from "node:path";
import { after, before } from "node:test";
import { Client, viewAt } from "../../client.ts";
import { attributesOf, Collector } from "../../collector.ts";
import { EventStream } from "../../event-stream.ts";
import { Server } from "../../server.ts";
import { waitFor } from "../../wait-for.ts";
import { conforms, section, test } from "../conforms.ts";
import { server as shared } from "../service.ts";
import { TestSocket } from "../socket.ts";

const skip = shared === undefined ? "the server at CAPSULE_URL must not be broken" : false;

export const operation = section(import.meta, "operation", () => {
  /** The server's copy of QEMU, and where it lies while it is broken. */
  const qemu = async () => {
    const builds = join(server.dataDir, "qemu");
    const [build] = (await readdir(builds)).filter((name) => name !== "sources.json");
    const program = join(builds, build!, "bin/qemu-system-x86_64");
    return { program, whole: `${program}.whole` };
  };
  const breakQemu = async () => {
    const { program, whole } = await qemu();
    await rename(program, whole);
    await copyFile("/bin/false", program);
  };
  const repairQemu = async () => {
    const { program, whole } = await qemu();
    await rename(whole, program);
  };
  let server: Server;
  let client: Client;
  let collector: Collector;

  before(async () => {
    if (skip !== false) return;
    collector = await Collector.start();
    // Without pool and warm processes, because a request must not find a QEMU that was started before.
    const anew = { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" };
    const env = { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, ...anew };
    const errors = [/"message":"the host cannot start a VM now/, /"message":"The VM of .* could not be restored/];
    server = await Server.start({
      keepsQemu: true,
      env,
      errors: [...errors, /could not be resumed and is still paused/],
    });
    client = await Client.connect(server.url, server.apiKey);
  });
  after(async () => {
    client?.close();
    await using _last = collector;
    await server?.[Symbol.asyncDispose]();
  });

  conforms(
    "POST /v1/capsules 502",
    "the host cannot provision a VM while the request is open: 502, nothing left behind, and a later retry succeeds",
    async () => {
      const { program, whole } = await qemu();
      await rename(program, whole);
      await waitFor("the host notices", async () => (await client.call("GET", "/healthz")).status === 503);
      const { json } = await client.expect(502, "POST", "/v1/capsules");
      assert.equal(json.error.code, "agent_error");
      assert.deepEqual((await client.expect(200, "GET", "/v1/capsules")).json, []);
      await rename(whole, program);
      await waitFor("a create is admitted", async () => {
        const { status, json: created } = await client.call("POST", "/v1/capsules");
        assert.ok(status === 201 || status === 502, String(status));
        if (status !== 201) return false;
        await client.expect(200, "GET", `/v1/capsules/${created.id}?wait=running`);
        assert.equal((await client.known(created.id).run("true")).exit_code, 0);
        await client.expect(204, "DELETE", `/v1/capsules/${created.id}`);
        return true;
      });
    },
    { skip },
  );

  test(
    "boots that fail after the 201 end in `error`, with a reason; a client that missed too many events is reset",
    async () => {
      await breakQemu();
      const { json } = await client.expect(201, "POST", "/v1/capsules");
      const failed = (await client.expect(200, "GET", `/v1/capsules/${json.id}?wait=error`)).json;
      assert.equal(failed.status, "error");
      assert.ok(failed.error_reason.length > 10, failed.error_reason);
      assert.equal(failed.started_at, null);
      await client.expect(204, "DELETE", `/v1/capsules/${json.id}`);

      // More than the 256 events that are kept for a team: three of each.
      const stream = await EventStream.open(client);
      assert.deepEqual((await stream.next())?.data, { reason: "new" });
      await stream[Symbol.asyncDispose]();
      for (let round = 0; round < 86; round++) {
        const { id } = (await client.expect(201, "POST", "/v1/capsules")).json;
        await client.expect(200, "GET", `/v1/capsules/${id}?wait=error`);
        await client.expect(204, "DELETE", `/v1/capsules/${id}`);
      }
      await using late = await EventStream.open(client, stream.lastId);
      assert.deepEqual((await late.next())?.data, { reason: "missed" });
      await repairQemu();
      await using capsule = await client.capsule();
      assert.equal((await capsule.run("true")).exit_code, 0);
    },
    { skip },
  );

  test(
    "a resume that fails is 502 and leaves the capsule `paused` and unharmed",
    async () => {
      await using capsule = await client.capsule();
      await capsule.sh("echo kept > /dev/shm/state");
      await capsule.pause();
      await breakQemu();
      const { json } = await client.expect(502, "POST", `${capsule.path}/resume`);
      assert.equal(json.error.code, "agent_error");
      assert.equal((await capsule.view()).status, "paused");
      await repairQemu();
      await capsule.resume();
      assert.equal(await capsule.sh("cat /dev/shm/state"), "kept");
    },
    { skip },
  );

  for (const signal of ["SIGTERM", "SIGKILL"] as const) {
    test(
      `after ${signal} and a new start, capsules are as they were, with their processes and terminals`,
      async () => {
        const running = await client.capsule();
        const paused = await client.capsule();
        await paused.pause();
        const { json } = await running.exec({ cmd: "sleep", args: ["8001"], background: true });
        await using socket = await TestSocket.open(running, "pty");
        socket.say({ type: "start" });
        const { tag, pid } = await socket.next("started");
        const before = [await running.view(), await paused.view()];

        await server.kill(signal);
        await server.start();
        await server.adopted();
        client.close();
        client = await Client.connect(server.url, server.apiKey);

        const now = [running, paused].map((each) => client.known(each.id));
        const views = await Promise.all(now.map((each) => each.view()));
        const expected = before.map((view) => viewAt(server.url, view));
        assert.deepEqual(views.map(steady), expected.map(steady));
        assert.equal((await now[0]!.run("pgrep", ["-xf", "sleep 8001"])).stdout, `${json.pid}\n`);
        await using again = await TestSocket.open(now[0]!, "pty");
        again.say({ type: "connect", tag });
        assert.equal((await again.next("started")).pid, pid);
        await now[1]!.resume();
        assert.equal(await now[1]!.sh("echo fine"), "fine");
        await Promise.all(now.map((each) => each.destroy()));
      },
      { skip },
    );
  }

  test(
    "spans reach the collector when the server stops, with the capsule's id",
    async () => {
      const capsule = await client.capsule();
      await capsule.run("true");
      await capsule.pause();
      await capsule.destroy();
      await server.kill("SIGTERM");
      const own = collector.spans.filter((span) => attributesOf(span)["capsule.id"] === capsule.id);
      const request = own.find(({ name }) => name === "POST /v1/capsules/:id/pause");
      const pause = own.find(({ name }) => name === "capsule pause");
      assert.ok(request && pause, own.map(({ name }) => name).join(", "));
      assert.equal(pause.parentSpanId, request.spanId);
      for (const name of ["capsule boot", "capsule exec"])
        assert.ok(
          own.some((span) => span.name === name),
          name,
        );
    },
    { skip },
  );
});

/** A view without last_active_at, whose last second a crash may lose. */
function steady({ last_active_at: _, ...rest }: Record<string, unknown>): Record<string, unknown> {
  return rest;
}
