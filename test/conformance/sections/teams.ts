/** A team's own limits with their usage, and its audit log. */
import assert from "node:assert/strict";
import { section, test } from "../conforms.ts";
import { unknownId } from "../requests.ts";
import { cannotMakeKeys, clientOf, ofOneHost, shown } from "../service.ts";
import { TestSocket } from "../socket.ts";

const skip = cannotMakeKeys;
type Entry = Record<string, unknown>;
/** Each host sends its audit entries once a second, and the list has them in the order of their arrival. */
const isOrdered = ofOneHost("entries of several hosts are listed as they have arrived") === false;

export const teams = section(import.meta, "teams", () => {
  test(
    "GET /v1/limits has the team's usage; a paused capsule uses no memory",
    async () => {
      const client = await clientOf("counters");
      const usage = async () => (await client.expect(200, "GET", "/v1/limits")).json.usage;
      assert.equal((await usage()).capsules, 0);
      await using capsule = await client.capsule({ vcpus: 1, memory_mb: 512 });
      const running = await usage();
      assert.deepEqual(
        [running.capsules, running.running_vcpus, running.running_memory_mb, running.sockets, running.requests],
        [1, 1, 512, 0, 1],
      );
      await using _socket = await TestSocket.open(capsule, "pty");
      assert.equal((await usage()).sockets, 1);
      await capsule.pause();
      const paused = await usage();
      assert.deepEqual([paused.capsules, paused.running_vcpus, paused.running_memory_mb], [1, 0, 0]);
      client.close();
    },
    { skip: skip || ofOneHost("sockets are counted by each host, and lists are a second behind") },
  );

  test(
    "another team's process exits, tickets and keys are answered as those that do not exist",
    async () => {
      const client = await clientOf("witnesses");
      const otherTeam = await clientOf("counters");
      await using capsule = await otherTeam.capsule();
      const { tag } = (await capsule.exec({ cmd: "true", background: true })).json;
      await otherTeam.expect(200, "GET", `${capsule.path}/processes/${tag}/exit`);
      const { key_id: keyId } = (await otherTeam.expect(200, "GET", "/v1/session")).json;
      const bodies = [
        [`/v1/capsules/${capsule.id}/processes/${tag}/exit`, `/v1/capsules/${unknownId}/processes/${tag}/exit`],
        [`/v1/keys/${keyId}`, `/v1/keys/${keyId.slice(0, -1)}${keyId.endsWith("0") ? "1" : "0"}`],
      ].map((paths) => paths.map((path) => client.call(path.includes("/keys/") ? "DELETE" : "GET", path)));
      for (const [theirs, nobodys] of await Promise.all(bodies.map((each) => Promise.all(each)))) {
        assert.deepEqual([theirs!.status, nobodys!.status], [404, 404]);
        const named = (text: string) => text.replace(/cl-\w+|key-\w+/g, "{id}");
        assert.equal(named(theirs!.text), named(nobodys!.text));
      }
      const path = `${capsule.path}/pty`;
      const { ticket } = (await client.expect(201, "POST", "/v1/ws-tickets", { json: { path } })).json;
      assert.equal((await client.upgrade(`${path}?ticket=${ticket}`, { key: null })).status, 404);
      await otherTeam.expect(200, "GET", "/v1/session");
      for (const each of [client, otherTeam]) each.close();
    },
    { skip },
  );

  test(
    "GET /v1/audit lists the team's own actions with key and capsule, newest first",
    async () => {
      const client = await clientOf("witnesses");
      const otherTeam = await clientOf("counters");
      const capsule = await client.capsule();
      await capsule.run("true", ["not told"]);
      await capsule.pause();
      await otherTeam.expect(404, "DELETE", capsule.path);
      await capsule.destroy();
      await client.expect(404, "POST", `${capsule.path}/ping`);
      await shown(async () => {
        const { json } = await client.expect(200, "GET", `/v1/audit?capsule=${capsule.id}`);
        assert.deepEqual(
          json.entries.map((entry: Record<string, unknown>) => [entry.action, entry.subject, entry.status]),
          [
            ["capsule.destroy", null, 204],
            ["capsule.pause", null, 200],
            ["exec", "true", 200],
            ["capsule.create", "minimal", 201],
          ],
        );
        const all: Entry[] = (await client.expect(200, "GET", "/v1/audit")).json.entries;
        const first = isOrdered ? all.at(-1) : all.find(({ action }) => action === "key.create");
        assert.deepEqual([first?.key_id, first?.action], ["operator", "key.create"]);
        const query = isOrdered ? "?limit=1" : "";
        const others: Entry[] = (await otherTeam.expect(200, "GET", `/v1/audit${query}`)).json.entries;
        const theirs = others.find(({ action }) => action === "capsule.destroy");
        assert.deepEqual([theirs?.capsule_id, theirs?.status], [capsule.id, 404]);
      });
      for (const each of [client, otherTeam]) each.close();
    },
    { skip },
  );
});
