/** Section "Errors", and "Authentication": who is refused, in which order, in which words. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import type { Client, Reply, TestCapsule } from "../../client.ts";
import { conforms, test } from "../conforms.ts";
import { fileForm, request } from "../requests.ts";
import { cannotMakeKeys, client, clientOf, server } from "../service.ts";
import { type Endpoint, endpoints, endpointsWith, type Row, webSockets } from "../specification.ts";

const unknownId = `cl-${"z".repeat(25)}`;
const malformed = { body: '{"cmd":', headers: { "content-type": "application/json" } };

/** What only a request that got past all checks but the body's would mind. */
function badBody(endpoint: Endpoint) {
  return webSockets.includes(endpoint) || endpoint.startsWith("GET") ? {} : malformed;
}

function refused({ status, json, text }: Reply, expectedStatus: number, code: string): void {
  assert.equal(status, expectedStatus, text);
  assert.equal(json.error.code, code);
  assert.ok(typeof json.error.message === "string" && json.error.message.length > 10, text);
}

describe("errors", () => {
  let running: TestCapsule;
  let paused: TestCapsule;
  let pid: number;

  before(async () => {
    pid = (await client.expect(200, "GET", "/healthz", { key: null })).json.pid;
    [running, paused] = await Promise.all([client.capsule(), client.capsule()]);
    await paused.pause();
  });
  after(() => Promise.all([running?.[Symbol.asyncDispose](), paused?.[Symbol.asyncDispose]()]));

  describe("401", () => {
    const strangers: [string, string | null][] = [
      ["missing", null],
      ["empty", ""],
      ["unknown", `capk_${"0".repeat(40)}`],
      ["too long", "k".repeat(8_000)],
      ["the right one with a letter more", `${client.key}x`],
      ["the right one with a letter less", client.key.slice(0, -1)],
    ];
    for (const endpoint of endpoints) {
      conforms(`${endpoint} 401` as Row, "When the key is missing or invalid, the response is 401", async () => {
        for (const [, key] of strangers) {
          refused(
            await request(client, endpoint, { id: unknownId }, { ...badBody(endpoint), key }),
            401,
            "unauthorized",
          );
        }
        refused(await request(client, endpoint, running, { ...badBody(endpoint), key: null }), 401, "unauthorized");
      });
    }

    test("the words are the same for every reason", async () => {
      const bodies = new Set<string>();
      for (const [, key] of strangers) bodies.add((await client.call("GET", "/v1/capsules", { key })).text);
      assert.equal(bodies.size, 1);
    });

    test(
      "a revoked key is refused at once, and the team's other keys live on",
      async () => {
        const key = await server!.createKey("turncoats", "to be revoked");
        const other = await server!.createKey("turncoats", "to be kept");
        await client.expect(200, "GET", "/v1/capsules", { key });
        await server!.revokeKeys("to be revoked");
        refused(await client.call("GET", "/v1/capsules", { key }), 401, "unauthorized");
        await client.expect(200, "GET", "/v1/capsules", { key: other });
      },
      { skip: cannotMakeKeys },
    );
  });

  describe("404 and 409, in order", () => {
    let stranger: Client | undefined;
    let foreignId = unknownId;
    before(async () => {
      if (cannotMakeKeys) return;
      stranger = await clientOf("strangers");
      foreignId = (await stranger.expect(201, "POST", "/v1/capsules", {})).json.id;
    });
    after(() => stranger?.call("DELETE", `/v1/capsules/${foreignId}`));

    const inPath = endpointsWith("404 capsule").filter((endpoint) => endpoint.includes("{id}"));
    for (const endpoint of inPath) {
      conforms(
        `${endpoint} 404 capsule` as Row,
        "A capsule of another team is reported exactly as a capsule that does not exist, before the body is looked at",
        async () => {
          const bodies = new Set<string>();
          const ids = [
            unknownId,
            foreignId,
            "x",
            "cl-",
            "cl-%00",
            "..%2f..%2fetc%2fpasswd",
            "%2e%2e",
            "%0a",
            "a".repeat(10_000),
          ];
          for (const id of [...ids, `${running.id}x`, running.id.slice(0, -1), running.id.toUpperCase()]) {
            const reply = await request(client, endpoint, { id }, badBody(endpoint));
            refused(reply, 404, "not_found");
            bodies.add(reply.text.replace(JSON.stringify(decodeURIComponent(id)).slice(1, -1), "{id}"));
          }
          assert.equal(bodies.size, 1, [...bodies].join("\n"));
        },
      );
    }

    for (const endpoint of endpointsWith("409 not running").filter((each) => each !== "POST /v1/snapshots")) {
      conforms(`${endpoint} 409 not running` as Row, "Must be `running`: checked before the body", async () => {
        refused(await request(client, endpoint, paused, badBody(endpoint)), 409, "invalid_state");
        assert.equal((await paused.view()).status, "paused");
      });
    }

    conforms("POST /v1/capsules/{id}/resume 409 not paused", "Must be `paused`: resume", async () => {
      refused(await client.call("POST", `${running.path}/resume`, malformed), 409, "invalid_state");
      assert.equal((await running.view()).status, "running");
    });

    conforms("POST /v1/snapshots 404 capsule", "a capsule of another team is one that does not exist", async () => {
      const bodies = new Set<string>();
      for (const id of [unknownId, foreignId, "x", "../x", "a".repeat(10_000)]) {
        const reply = await client.call("POST", "/v1/snapshots", { json: { sandbox_id: id } });
        refused(reply, 404, "not_found");
        bodies.add(reply.text.replace(id, "{id}"));
      }
      assert.equal(bodies.size, 1, [...bodies].join("\n"));
    });

    conforms("POST /v1/snapshots 409 not running", "Must be `running`: snapshot creation", async () => {
      refused(await client.call("POST", "/v1/snapshots", { json: { sandbox_id: paused.id } }), 409, "invalid_state");
      assert.equal((await paused.view()).status, "paused");
    });

    conforms(
      "DELETE /v1/snapshots/{name} 404 template",
      "no snapshot template with that name for the team",
      async () => {
        for (const name of ["no-such-template", "minimal", "%00", "..", "..%2fminimal", "a".repeat(10_000)]) {
          refused(await client.call("DELETE", `/v1/snapshots/${name}`), 404, "not_found");
        }
      },
    );

    test(
      "what is wrong with a stranger's capsule is not told: GET of another team's id",
      async () => {
        for (const endpoint of inPath) refused(await request(stranger!, endpoint, running), 404, "not_found");
        assert.equal((await running.view()).status, "running");
      },
      { skip: cannotMakeKeys },
    );
  });

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
      const wrong = ["1e400", "-1e400", "null", '"1"', "1.5", "-1", "true", "[]", "{}", "1e15", "-0.1"];
      test(`create: ${field} of ${wrong.join(" ")} is 400`, async () => {
        for (const value of wrong) {
          const reply = await client.call("POST", "/v1/capsules", { body: `{"${field}":${value}}` });
          refused(reply, 400, "invalid_request");
          assert.match(reply.json.error.message, new RegExp(field));
        }
      });
    }

    test("create: bounds are those of GET /v1/limits", async () => {
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

    test("create: an unknown template is 404, whatever its name; one that is no text 400", async () => {
      for (const template of ["nope", "", "../minimal", "a".repeat(10_000), "MINIMAL", "minimal ", "名前"]) {
        refused(await client.call("POST", "/v1/capsules", { json: { template } }), 404, "not_found");
      }
      for (const template of [1, null, [], {}, "mini\0mal"]) {
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
    test("exec: every bad field is 400 and nothing is run", async () => {
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
    test("snapshots: every bad field is 400, and the capsule runs on", async () => {
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

    test("a query that is none of the allowed is 400", async () => {
      refused(await client.call("GET", "/v1/snapshots?type=other"), 400, "invalid_request");
    });
  });

  describe("bodies too large", () => {
    test("a JSON body of 2 MiB is 413 on every endpoint that takes one, after the key and the capsule", async () => {
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
      { timeoutMs: 120_000 },
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
        "/",
      ]) {
        refused(await client.call("GET", path), 404, "not_found");
      }
      for (const path of ["/v1/nothing", `${running.path}/nothing`]) {
        refused(await client.call("GET", path, { key: null }), 401, "unauthorized");
      }
    });

    test("a wrong method is 405 with Allow, after the key and before the body", async () => {
      const wrong: [string, string, string[]][] = [
        ["PUT", "/v1/capsules", ["GET", "POST"]],
        ["PATCH", running.path, ["GET", "DELETE"]],
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

    test("a refused upgrade says that its connection closes", async () => {
      for (const endpoint of webSockets) {
        const reply = await request(client, endpoint, { id: unknownId });
        refused(reply, 404, "not_found");
        assert.equal(reply.headers.connection?.toLowerCase(), "close", endpoint);
      }
    });

    test("dots and encoded slashes in the place of an id lead nowhere", async () => {
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

  describe("afterwards", () => {
    test("the daemon is unmoved: the same process, ready, and both capsules as they were", async () => {
      const { json } = await client.expect(200, "GET", "/healthz", { key: null });
      assert.equal(json.pid, pid);
      assert.equal(json.ready, true);
      assert.ok(["tcg", "kvm"].includes(json.accelerator));
      assert.equal((await running.view()).status, "running");
      assert.equal((await running.run("true")).exit_code, 0);
      await paused.resume();
      assert.equal((await paused.run("true")).exit_code, 0);
    });
  });
});
