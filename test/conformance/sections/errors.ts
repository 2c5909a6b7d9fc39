/** Sections "Errors" and "Authentication": refusals, their order and their messages. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import type { Client, TestCapsule } from "../../client.ts";
import { conforms, section, test } from "../conforms.ts";
import { refused } from "../refusals.ts";
import { malformed, request, unknownId } from "../requests.ts";
import { cannotMakeKeys, client, clientOf, server, shown } from "../service.ts";
import { TestSocket } from "../socket.ts";
import { type Endpoint, endpoints, endpointsWith, type Row, webSockets } from "../specification.ts";

/** An invalid body, which is noticed only after all other checks. */
function badBody(endpoint: Endpoint) {
  return webSockets.includes(endpoint) || endpoint.startsWith("GET") ? {} : malformed;
}

export const errors = section(import.meta, "errors", () => {
  let running: TestCapsule;
  let paused: TestCapsule;

  before(async () => {
    [running, paused] = await Promise.all([client.capsule(), client.capsule()]);
    await paused.pause();
  });
  after(() => Promise.all([running?.[Symbol.asyncDispose](), paused?.[Symbol.asyncDispose]()]));

  describe("401", () => {
    const otherTeams: [string, string | null][] = [
      ["missing", null],
      ["empty", ""],
      ["unknown", `capk_${"0".repeat(40)}`],
      ["too long", "k".repeat(8_000)],
      ["the right one with a letter more", `${client.key}x`],
      ["the right one with a letter less", client.key.slice(0, -1)],
    ];
    for (const endpoint of endpoints) {
      conforms(`${endpoint} 401` as Row, "When the key is missing or invalid, the response is 401", async () => {
        for (const [, key] of otherTeams) {
          refused(
            await request(client, endpoint, { id: unknownId }, { ...badBody(endpoint), key }),
            401,
            "unauthorized",
          );
        }
        refused(await request(client, endpoint, running, { ...badBody(endpoint), key: null }), 401, "unauthorized");
      });
    }

    test("the message is the same for every reason", async () => {
      const bodies = new Set<string>();
      for (const [, key] of otherTeams) bodies.add((await client.call("GET", "/v1/capsules", { key })).text);
      assert.equal(bodies.size, 1);
    });

    test(
      "a revoked key is refused at once, its open sockets are closed, and the team's other keys keep working",
      async () => {
        const key = await server!.createKey("turncoats", "to be revoked");
        const other = await server!.createKey("turncoats", "to be kept");
        await using capsule = await client.as(other).capsule();
        await using socket = await TestSocket.open(client.as(key).known(capsule.id), "pty");
        socket.say({ type: "start", cmd: "cat" }); // a socket that asks for nothing is closed after 30 s
        await socket.next("started");
        await client.expect(200, "GET", "/v1/capsules", { key });
        await server!.revokeKeys("to be revoked");
        await shown(async () => refused(await client.call("GET", "/v1/capsules", { key }), 401, "unauthorized"));
        await client.expect(200, "GET", "/v1/capsules", { key: other });
        assert.deepEqual(await socket.next("error"), {
          type: "error",
          data: "the API key is no longer valid",
          fatal: true,
        });
        assert.equal((await socket.closed).code, 4401);
      },
      { skip: cannotMakeKeys },
    );
  });

  describe("404 and 409, in order", () => {
    let otherTeam: Client | undefined;
    let foreignId = unknownId;
    before(async () => {
      if (cannotMakeKeys) return;
      otherTeam = await clientOf("otherTeams");
      foreignId = (await otherTeam.expect(201, "POST", "/v1/capsules", {})).json.id;
    });
    after(() => otherTeam?.call("DELETE", `/v1/capsules/${foreignId}`));

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
      "the answer does not depend on the other team's capsule: GET of another team's id",
      async () => {
        for (const endpoint of inPath) refused(await request(otherTeam!, endpoint, running), 404, "not_found");
        assert.equal((await running.view()).status, "running");
      },
      { skip: cannotMakeKeys },
    );
  });

  describe("afterwards", () => {
    test("both capsules are unchanged", async () => {
      assert.equal((await running.view()).status, "running");
      assert.equal((await running.run("true")).exit_code, 0);
      await paused.resume();
      assert.equal((await paused.run("true")).exit_code, 0);
    });
  });
});
