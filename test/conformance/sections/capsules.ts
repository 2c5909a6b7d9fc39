/** Section "Capsules": create, list, get, destroy, ping; pause and resume are in lifecycle.ts. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import type { Reply } from "../../client.ts";
import { TestCapsule } from "../../client.ts";
import { conforms, section, test } from "../conforms.ts";
import { cannotMakeKeys, client, clientOf, shown } from "../service.ts";
import { TestSocket } from "../socket.ts";

const timestamp = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
const fields = [
  "id",
  "status",
  "template",
  "vcpus",
  "memory_mb",
  "timeout_sec",
  "created_at",
  "last_updated",
  "started_at",
  "last_active_at",
];

/** A new capsule and the answer to its creation. */
async function create(json?: unknown): Promise<AsyncDisposable & { capsule: TestCapsule; view: Reply["json"] }> {
  const reply = await client.expect(201, "POST", "/v1/capsules", json === undefined ? {} : { json });
  const capsule = new TestCapsule(client, reply.json.id);
  return { capsule, view: reply.json, [Symbol.asyncDispose]: () => capsule[Symbol.asyncDispose]() };
}

/** The service may run on another machine. */
const clockToleranceMs = 5_000;

export const creation = section(import.meta, "create", () => {
  conforms("POST /v1/capsules 201", "Response 201: Capsule, with every default, at once", async () => {
    const before = Date.now();
    await using created = await create();
    const { view } = created;
    assert.match(view.id, /^cl-[0-9a-z]{25}$/);
    assert.ok(["pending", "starting"].includes(view.status), `it waits for the boot: ${view.status}`);
    const { template, vcpus, memory_mb, timeout_sec } = view;
    assert.deepEqual(
      { template, vcpus, memory_mb, timeout_sec },
      { template: "minimal", vcpus: 1, memory_mb: 512, timeout_sec: 0 },
    );
    assert.match(view.created_at, timestamp);
    assert.match(view.last_updated, timestamp);
    const createdMs = Date.parse(view.created_at);
    assert.ok(createdMs > before - clockToleranceMs && createdMs < Date.now() + clockToleranceMs, view.created_at);
    assert.equal(view.started_at, null);
    assert.equal(view.last_active_at, null);
    assert.deepEqual(
      fields.filter((field) => !(field in view)),
      [],
    );
  });

  test("an empty JSON object is the same as no body, and unknown fields are ignored", async () => {
    for (const json of [{}, { colour: "red", id: "cl-mine", status: "running" }]) {
      await using created = await create(json);
      assert.match(created.view.id, /^cl-[0-9a-z]{25}$/);
      assert.equal(created.view.memory_mb, 512);
    }
  });

  test("body: template, vcpus, memory_mb, timeout_sec; the VM has the requested shape", async () => {
    await using created = await create({ template: "minimal", vcpus: 2, memory_mb: 256, timeout_sec: 3_600 });
    const { capsule, view } = created;
    const { template, vcpus, memory_mb, timeout_sec } = view;
    assert.deepEqual(
      { template, vcpus, memory_mb, timeout_sec },
      { template: "minimal", vcpus: 2, memory_mb: 256, timeout_sec: 3_600 },
    );
    await capsule.until("running");
    assert.equal(await capsule.sh("nproc"), "2");
    const kib = Number(await capsule.sh("awk '/^MemTotal/ {print $2}' /proc/meminfo"));
    assert.ok(kib > 160 * 1024 && kib <= 256 * 1024, `${kib} KiB`);
  });

  test("memory_mb 2048 starts, though QEMU's loader cannot place an initrd at that size", async () => {
    await using created = await create({ memory_mb: 2_048 });
    assert.equal((await created.capsule.until("running")).memory_mb, 2_048);
    const kib = Number(await created.capsule.sh("awk '/^MemTotal/ {print $2}' /proc/meminfo"));
    assert.ok(kib > 1_900 * 1_024 && kib <= 2_048 * 1_024, `${kib} KiB`);
  });

  test("the root file system is the capsule's own and has gigabytes of free space", async () => {
    await using first = await client.capsule();
    await using second = await client.capsule();
    await first.sh("echo first > /root/mine");
    assert.equal((await second.run("cat", ["/root/mine"])).exit_code, 1);
    assert.ok(Number(await first.sh("df --output=avail -BM / | tail -1 | tr -dc 0-9")) > 2_048);
  });

  test("the base template `minimal` exists, with bash, git, curl, ip, ps and python3", async () => {
    await using capsule = await client.capsule();
    const script = "for tool in bash git curl ip ps python3; do command -v $tool || exit 1; done";
    assert.equal((await capsule.sh(script)).split("\n").length, 6);
    assert.equal(await capsule.sh("python3 -c 'print(6*7)'"), "42");
  });
});

export const boot = section(import.meta, "boot", () => {
  test("`starting`, VM boot completes → `running`; `started_at` is set", async () => {
    await using created = await create();
    const { capsule, view } = created;
    const running = await capsule.until("running");
    assert.match(running.started_at, timestamp);
    assert.ok(running.started_at >= view.created_at);
    assert.ok(running.last_updated >= running.created_at);
    assert.equal(running.last_active_at, null);
    for (const field of ["id", "template", "vcpus", "memory_mb", "timeout_sec", "created_at"]) {
      assert.equal(running[field], view[field], field);
    }
  });

  test("GET ?wait= holds the answer until the status is reached, cannot be reached, or the time is over", async () => {
    await using capsule = await client.capsule();
    assert.equal((await client.expect(200, "GET", `${capsule.path}?wait=running`)).json.status, "running");
    const began = performance.now();
    assert.equal((await client.expect(200, "GET", `${capsule.path}?wait=paused&timeout=1`)).json.status, "running");
    assert.ok(performance.now() - began >= 990);
    const waiting = client.expect(200, "GET", `${capsule.path}?wait=paused`);
    await capsule.pause();
    assert.equal((await waiting).json.status, "paused");
  });

  test("GET ?wait= on a capsule that is destroyed during the wait is 404", async () => {
    await using capsule = await client.capsule();
    const waiting = client.call("GET", `${capsule.path}?wait=paused`);
    // On another connection, so the wait may start before or after the DELETE.
    await client.expect(204, "POST", `${capsule.path}/ping`);
    await capsule.destroy();
    assert.equal((await waiting).status, 404);
  });

  for (const query of [
    "wait=asleep",
    "wait=",
    "wait=running&timeout=-1",
    "wait=running&timeout=x",
    "wait=running&timeout=1e3",
  ]) {
    test(`GET ?${query} is 400`, async () => {
      await using created = await create();
      const { json } = await client.expect(400, "GET", `${created.capsule.path}?${query}`);
      assert.equal(json.error.code, "invalid_request");
    });
  }
});

export const listAndGet = section(import.meta, "list and get", () => {
  conforms("GET /v1/capsules 200", "array of Capsule, newest created first", async () => {
    const ids: string[] = [];
    await using first = await create();
    await using second = await create();
    await using third = await create();
    for (const { view } of [third, second, first]) ids.push(view.id);
    const { json } = await client.expect(200, "GET", "/v1/capsules");
    const listed: string[] = json.map(({ id }: { id: string }) => id);
    assert.deepEqual(
      listed.filter((id) => ids.includes(id)),
      ids,
    );
    const times: string[] = json.map((each: { created_at: string }) => each.created_at);
    assert.deepEqual(times, times.toSorted().reverse());
  });

  test("lists the team's capsules of every status", async () => {
    await using running = await client.capsule();
    await using paused = await client.capsule();
    await paused.pause();
    await shown(async () => {
      const { json } = await client.expect(200, "GET", "/v1/capsules");
      const statusOf = (id: string) => json.find((each: { id: string }) => each.id === id)?.status;
      assert.equal(statusOf(running.id), "running");
      assert.equal(statusOf(paused.id), "paused");
      for (const each of json)
        assert.deepEqual(
          fields.filter((field) => !(field in each)),
          [],
        );
    });
  });

  test(
    "`[]` when the team has none",
    async () => {
      const emptyTeam = await clientOf("without-capsules");
      assert.deepEqual((await emptyTeam.expect(200, "GET", "/v1/capsules")).json, []);
    },
    { skip: cannotMakeKeys },
  );

  test("a name stands for the id, and pages by label show every capsule once", async () => {
    const label = `run=${randomUUID()}`;
    const labels = { run: label.slice(4) };
    await using first = await create({ name: `a-${labels.run}`, labels });
    await using second = await create({ labels });
    const named = await client.expect(200, "GET", `/v1/capsules/a-${labels.run}?wait=running`);
    assert.equal(named.json.id, first.view.id);
    const exec = await client.expect(200, "POST", `/v1/capsules/a-${labels.run}/exec`, { json: { cmd: "true" } });
    assert.equal(exec.json.exit_code, 0);
    const page = await client.expect(200, "GET", `/v1/capsules?limit=1&label=${label}`);
    const cursor = page.headers["x-next-cursor"];
    const next = await client.expect(200, "GET", `/v1/capsules?limit=1&label=${label}&cursor=${cursor}`);
    assert.deepEqual([page.json[0].id, next.json[0].id], [second.view.id, first.view.id]);
    assert.equal(next.headers["x-next-cursor"], undefined);
    const patched = await client.expect(200, "PATCH", first.capsule.path, { json: { name: null, timeout_sec: 900 } });
    assert.deepEqual([patched.json.name, patched.json.timeout_sec, patched.json.labels], [null, 900, labels]);
    await client.expect(404, "GET", `/v1/capsules/a-${labels.run}`);
  });

  conforms("GET /v1/capsules/{id} 200", "returns one Capsule, the same as in the list", async () => {
    await using capsule = await client.capsule();
    const view = await capsule.view();
    assert.deepEqual(
      fields.filter((field) => !(field in view)),
      [],
    );
    await shown(async () => {
      const { json } = await client.expect(200, "GET", "/v1/capsules");
      assert.deepEqual(
        json.find((each: { id: string }) => each.id === capsule.id),
        view,
      );
    });
  });
});

export const destroy = section(import.meta, "destroy", () => {
  conforms("DELETE /v1/capsules/{id} 204", "Response 204, empty body. Irreversible", async () => {
    await using capsule = await client.capsule();
    const reply = await client.expect(204, "DELETE", capsule.path);
    assert.equal(reply.bytes.length, 0);
    await client.expect(404, "GET", capsule.path);
    await client.expect(404, "DELETE", capsule.path);
    await client.expect(404, "POST", `${capsule.path}/resume`);
    const { json } = await client.expect(200, "GET", "/v1/capsules");
    assert.ok(!json.some((each: { id: string }) => each.id === capsule.id));
  });

  test("works while the capsule is starting, and the capsule does not reappear", async () => {
    const created = await Promise.all(Array.from({ length: 4 }, () => create()));
    await Promise.all(created.map(({ capsule }) => client.expect(204, "DELETE", capsule.path)));
    for (const { capsule } of created) await client.expect(404, "GET", capsule.path);
    const { json } = await client.expect(200, "GET", "/v1/capsules");
    const ids = new Set(json.map((each: { id: string }) => each.id));
    assert.deepEqual(
      created.filter(({ view }) => ids.has(view.id)),
      [],
    );
  });

  test("two at once: one 204 and one 404, or both 204; never an error", async () => {
    await using capsule = await client.capsule();
    const replies = await Promise.all([client.call("DELETE", capsule.path), client.call("DELETE", capsule.path)]);
    for (const { status } of replies) assert.ok(status === 204 || status === 404, String(status));
    assert.ok(replies.some(({ status }) => status === 204));
  });

  test("a running VM is terminated immediately: an exec in flight ends with an error, not with an exit", async () => {
    await using capsule = await client.capsule();
    const running = capsule.exec({ cmd: "sleep", args: ["1000"], timeout: 0 });
    await capsule.sh("until pgrep -x sleep; do :; done");
    await capsule.destroy();
    const { status, json } = await running;
    assert.deepEqual([status, json.error.code], [404, "not_found"]);
  });
});

export const ping = section(import.meta, "ping", () => {
  conforms("POST /v1/capsules/{id}/ping 204", "Updates `last_active_at`. Response 204, empty body", async () => {
    await using capsule = await client.capsule({ timeout_sec: 600 });
    const before = await capsule.view();
    assert.equal(before.last_active_at, null);
    const reply = await client.expect(204, "POST", `${capsule.path}/ping`);
    assert.equal(reply.bytes.length, 0);
    const after = await capsule.view();
    assert.match(after.last_active_at, timestamp);
    assert.ok(after.last_active_at >= after.started_at);
    assert.equal(after.last_updated, before.last_updated, "`last_updated`: the most recent status change");
  });

  test("when `timeout_sec` is 0 the call is still accepted with 204", async () => {
    await using capsule = await client.capsule({ timeout_sec: 0 });
    await capsule.ping();
    assert.match((await capsule.view()).last_active_at, timestamp);
  });

  test("`last_active_at`: the last exec call or ping; nothing else moves it", async () => {
    await using capsule = await client.capsule();
    await client.expect(200, "GET", capsule.path);
    await client.expect(200, "GET", "/v1/capsules");
    const form: [string, string][] = [
      ["path", "/root/file"],
      ["file", "content"],
    ];
    await client.expect(204, "POST", `${capsule.path}/files/write`, { form });
    for (const verb of ["read", "list"]) {
      const path = verb === "read" ? "/root/file" : "/root";
      await client.expect(200, "POST", `${capsule.path}/files/${verb}`, { json: { path } });
    }
    await client.expect(200, "GET", `${capsule.path}/processes`);
    const terminal = await TestSocket.open(capsule, "pty");
    terminal.say({ type: "start" });
    await terminal.next("started");
    terminal.type("echo $((6*7))\n");
    await terminal.prints(/42\r\n/);
    await terminal[Symbol.asyncDispose]();
    assert.equal((await capsule.view()).last_active_at, null);
    const sent = Date.now();
    await capsule.run("sleep", ["0.3"]);
    const afterExec = await capsule.view();
    assert.ok(Date.parse(afterExec.last_active_at) >= sent + 250, "noted at the end of an exec too");
    assert.equal((await capsule.view()).last_active_at, afterExec.last_active_at);
    await capsule.ping();
    assert.ok((await capsule.view()).last_active_at >= afterExec.last_active_at);
  });

  test("the end of an exec call is that of its request: a background process's own end moves nothing", async () => {
    await using capsule = await client.capsule();
    const { json } = await capsule.exec({ cmd: "sleep", args: ["0.5"], background: true });
    const started = (await capsule.view()).last_active_at;
    assert.match(started, timestamp);
    const end = await client.expect(200, "GET", `${capsule.path}/processes/${json.tag}/exit`);
    assert.equal(end.json.exit_code, 0);
    assert.equal((await capsule.view()).last_active_at, started);
  });
});
