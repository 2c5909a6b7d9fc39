/** Section "Errors": requests with a wrong body, size, route or method. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import type { TestCapsule } from "../../client.ts";
import { conforms, section, test } from "../conforms.ts";
import { refused } from "../refusals.ts";
import { fileForm, malformed, request, unknownId } from "../requests.ts";
import { client } from "../service.ts";
import { webSockets } from "../specification.ts";

export const badRequests = section(import.meta, "bad requests", () => {
  let running: TestCapsule;
  let pid: number;
  before(async () => {
    pid = (await client.expect(200, "GET", "/healthz")).json.pid;
    running = await client.capsule();
  });
  after(() => running?.[Symbol.asyncDispose]());

  describe("400", () => {
    const notObjects = ["{", "[]", "null", "1", '"x"', '{"vcpus":NaN}', "{'vcpus':1}", '{"vcpus":1}x', "\ufeff{", "\0"];
    for (const body of notObjects) {
      test(`a body of ${JSON.stringify(body)} is 400`, async () => {
        for (const path of ["/v1/capsules", `${running.path}/exec`, "/v1/snapshots"]) {
          const reply = await client.call("POST", path, { body, headers: { "content-type": "application/json" } });
          refused(reply, 400, "invalid_request");
        }
      });
    }

    test("bytes that are not UTF-8 are 400", async () => {
      const body = Buffer.from([...Buffer.from('{"template":"'), 0xff, 0xfe, ...Buffer.from('"}')]);
      refused(await client.call("POST", "/v1/capsules", { body }), 400, "invalid_request");
    });

    for (const field of ["vcpus", "memory_mb", "timeout_sec"]) {
      const wrong = ["1e400", "-1e400", '"1"', "1.5", "-1", "true", "[]", "{}", "1e15", "-0.1"];
      test(`create: ${field} of ${wrong.join(" ")} is 400`, async () => {
        for (const value of wrong) {
          const reply = await client.call("POST", "/v1/capsules", { body: `{"${field}":${value}}` });
          refused(reply, 400, "invalid_request");
          assert.match(reply.json.error.message, new RegExp(field));
        }
      });
    }

    test("create: limits are those of GET /v1/limits", async () => {
      const { json: limits } = await client.expect(200, "GET", "/v1/limits");
      assert.ok(limits.vcpus_max >= 8);
      assert.equal(limits.memory_min_mb, 128);
      assert.equal(limits.timeout_max_sec, 31_536_000);
      const beyond = [
        { vcpus: 0 },
        { vcpus: limits.vcpus_max + 1 },
        { memory_mb: limits.memory_min_mb - 1 },
        { memory_mb: limits.memory_max_mb + 1 },
        { timeout_sec: limits.timeout_max_sec + 1 },
      ];
      for (const json of beyond) refused(await client.call("POST", "/v1/capsules", { json }), 400, "invalid_request");
    });

    test("create: an unknown template is 404, whatever its name; one that is not a string is 400", async () => {
      for (const template of ["nope", "", "../minimal", "a".repeat(10_000), "MINIMAL", "minimal ", "名前"]) {
        refused(await client.call("POST", "/v1/capsules", { json: { template } }), 404, "not_found");
      }
      for (const template of [1, [], {}, "mini\0mal"]) {
        refused(await client.call("POST", "/v1/capsules", { json: { template } }), 400, "invalid_request");
      }
    });

    const badExecs: [string, unknown][] = [
      ["no cmd", {}],
      ["an empty cmd", { cmd: "" }],
      ["a NUL in cmd", { cmd: "tr\0ue" }],
      ["a cmd that is no text", { cmd: ["true"] }],
      ["null for cmd", { cmd: null }],
      ["args that are no list", { cmd: "true", args: "x" }],
      ["a number in args", { cmd: "true", args: [1] }],
      ["a NUL in args", { cmd: "true", args: ["a\0b"] }],
      ["a negative timeout", { cmd: "true", timeout: -1 }],
      ["a fractional timeout", { cmd: "true", timeout: 0.5 }],
      ["a timeout that is text", { cmd: "true", timeout: "1" }],
      ["an endless timeout", { cmd: "true", timeout: 1e15 }],
      ["envs that are a list", { cmd: "true", envs: [] }],
      ["a number in envs", { cmd: "true", envs: { A: 1 } }],
      ["a NUL in envs", { cmd: "true", envs: { A: "\0" } }],
      ["an = in a variable's name", { cmd: "true", envs: { "A=B": "" } }],
      ["a cwd that is too long", { cmd: "true", cwd: `/${"a".repeat(4_096)}` }],
      ["a cwd that is not there", { cmd: "true", cwd: "/nowhere" }],
      ["a cwd that is a file", { cmd: "true", cwd: "/etc/passwd" }],
      ["background that is text", { cmd: "true", background: "true" }],
      ["a tag of 10 000 characters", { cmd: "true", background: true, tag: "a".repeat(10_000) }],
      ["an argument longer than the kernel takes", { cmd: "true", args: ["a".repeat(200_000)] }],
    ];
    test("exec: every bad field is 400 and runs nothing", async () => {
      for (const [what, json] of badExecs) {
        const reply = await running.exec(json);
        assert.equal(reply.status, 400, `${what}: ${reply.text}`);
        assert.equal(reply.json.error.code, "invalid_request", what);
      }
    });

    const badNames = [
      "",
      "-x",
      ".x",
      "_x",
      "a b",
      "a/b",
      "..",
      "ü",
      "a\0",
      "a\n",
      "a".repeat(65),
      "a".repeat(10_000),
      1,
    ];
    test("snapshots: every bad field is 400, and the capsule keeps running", async () => {
      const bad = [
        {},
        { sandbox_id: 1 },
        { sandbox_id: "" },
        ...badNames.map((name) => ({ sandbox_id: running.id, name })),
      ];
      for (const json of bad) {
        const reply = await client.call("POST", "/v1/snapshots", { json });
        assert.equal(reply.status, 400, `${JSON.stringify(json).slice(0, 200)}: ${reply.text}`);
        assert.equal(reply.json.error.code, "invalid_request");
      }
      assert.equal((await running.view()).status, "running");
    });

    test("an unknown value in a query is 400", async () => {
      refused(await client.call("GET", "/v1/snapshots?type=other"), 400, "invalid_request");
    });
  });

  describe("bodies too large", () => {
    test("a JSON body of 2 MiB is 413 on every endpoint that takes one, after key and capsule were checked", async () => {
      const body = JSON.stringify({ cmd: "true", pad: "x".repeat(2 * 1024 * 1024) });
      for (const path of ["/v1/capsules", `${running.path}/exec`, "/v1/snapshots", `${running.path}/files/list`]) {
        refused(await client.call("POST", path, { body }), 413, "too_large");
      }
      refused(await client.call("POST", `/v1/capsules/${unknownId}/exec`, { body }), 404, "not_found");
      refused(await client.call("POST", "/v1/capsules", { body, key: null }), 401, "unauthorized");
    });

    conforms(
      "POST /v1/capsules/{id}/files/write 413",
      "file exceeds the maximum size (the streaming write avoids this limit)",
      async () => {
        const { json: limits } = await client.expect(200, "GET", "/v1/limits");
        assert.equal(limits.file_write_max_bytes, 100 * 1024 * 1024);
        const large = new Uint8Array(limits.file_write_max_bytes + 1);
        await running.sh("echo old > /root/large");
        const reply = await client.call("POST", `${running.path}/files/write`, {
          form: fileForm("/root/large", large),
        });
        refused(reply, 413, "too_large");
        assert.equal(await running.sh("cat /root/large; ls -A /root | grep -c large"), "old\n1");
      },
    );
  });

  describe("routes and methods", () => {
    test("an unknown route is 404 in JSON", async () => {
      for (const path of [
        "/v1",
        "/v1/",
        "/v1/nothing",
        `${running.path}/nothing`,
        `${running.path}/`,
        "/v2/capsules",
      ]) {
        refused(await client.call("GET", path), 404, "not_found", path);
      }
      for (const path of ["/v1/nothing", `${running.path}/nothing`]) {
        refused(await client.call("GET", path, { key: null }), 401, "unauthorized");
      }
    });

    test("a wrong method is 405 with Allow, checked after the key and before the body", async () => {
      const wrong: [string, string, string[]][] = [
        ["PUT", "/v1/capsules", ["GET", "POST"]],
        ["PUT", running.path, ["GET", "PATCH", "DELETE"]],
        ["GET", `${running.path}/exec`, ["POST"]],
        ["DELETE", `${running.path}/pause`, ["POST"]],
        ["POST", `${running.path}/processes`, ["GET"]],
        ["GET", `${running.path}/files/read`, ["POST"]],
        ["PUT", "/v1/snapshots", ["GET", "POST"]],
        ["GET", "/v1/snapshots/x", ["DELETE"]],
      ];
      for (const [method, path, allowed] of wrong) {
        refused(await client.call(method, path, { ...malformed, key: null }), 401, "unauthorized");
        const reply = await client.call(method, path, malformed);
        refused(reply, 405, "method_not_allowed");
        const allow = String(reply.headers.allow).split(", ");
        for (const each of allowed) assert.ok(allow.includes(each), `${path}: ${reply.headers.allow}`);
        assert.ok(!allow.includes(method));
      }
    });

    test("a refused upgrade has Connection: close", async () => {
      for (const endpoint of webSockets) {
        const reply = await request(client, endpoint, { id: unknownId });
        refused(reply, 404, "not_found");
        assert.equal(reply.headers.connection?.toLowerCase(), "close", endpoint);
      }
    });

    test("dots and encoded slashes in place of an id are refused", async () => {
      for (const path of [
        "/v1/capsules/..",
        "/v1/capsules/../snapshots",
        "/v1/capsules/%2e%2e/exec",
        "/v1/capsules/..%2f..%2fapi-key",
      ]) {
        const { status } = await client.call(path.endsWith("exec") ? "POST" : "GET", path);
        assert.equal(status, 404, path);
      }
      refused(await client.call("GET", "/v1/capsules/%zz"), 400, "invalid_request");
    });
  });

  test("afterwards the daemon is the same process and ready, and the capsule is unchanged", async () => {
    const { json } = await client.expect(200, "GET", "/healthz");
    assert.deepEqual([json.pid, json.ready], [pid, true]);
    assert.ok(["tcg", "kvm"].includes(json.accelerator));
    assert.equal((await running.view()).status, "running");
    assert.equal((await running.run("true")).exit_code, 0);
  });
});
