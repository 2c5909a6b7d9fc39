/** The network of real capsules, and tokens of their ports: over pauses, captures and restarts of the guest. */
import assert from "node:assert/strict";
import { waitFor } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { client } from "../service.ts";

const byDefault = { egress: "public", allow: [], deny: [], public_ports: [], host_header: null, inject: [] };
const asked = {
  egress: "allowlist",
  allow: ["PyPI.org.", "8.8.8.0/24:53"],
  deny: ["10.0.0.0/8"],
  public_ports: [8_000],
  host_header: "localhost:{port}",
};
const kept = { ...asked, allow: ["pypi.org", "8.8.8.0/24:53"], inject: [] };

export const network = section(import.meta, "network", () => {
  test("a capsule keeps its network over a pause, a PUT while paused, a stop and a start", async () => {
    await using capsule = await client.capsule({ network: asked });
    const shown = async () => (await client.expect(200, "GET", capsule.path)).json.network;
    assert.deepEqual(await shown(), kept);
    await capsule.pause();
    const { json } = await client.expect(200, "PUT", `${capsule.path}/network`, { json: { public_ports: [80] } });
    const { effective, counters, recent, unsupported, ...replaced } = json;
    assert.deepEqual(replaced, { ...byDefault, public_ports: [80] });
    assert.deepEqual([effective, recent, unsupported], [{ egress: "public", allow: [], deny: [] }, [], false]);
    assert.deepEqual(new Set(Object.values(counters)), new Set([0]));
    await capsule.resume();
    assert.deepEqual(await shown(), replaced);
    await capsule.stop();
    await capsule.start();
    assert.deepEqual((await client.expect(200, "GET", `${capsule.path}/network`)).json, json);
  });

  test("a refused network changes nothing and makes nothing", async () => {
    await using capsule = await client.capsule({ network: asked });
    const bad = { ...asked, allow: ["a.example", "b.example", "c.example", "::1"] };
    for (const [call, path, json] of [
      ["POST", "/v1/capsules", { network: bad }],
      ["PUT", `${capsule.path}/network`, bad],
    ] as const) {
      const { json: refused } = await client.expect(400, call, path, { json });
      assert.deepEqual([refused.error.code, refused.error.details.field], ["invalid_request", "network.allow[3]"]);
    }
    const reserved = { allow: ["169.254.169.254"] };
    const { json: refused } = await client.expect(403, "PUT", `${capsule.path}/network`, { json: reserved });
    assert.match(refused.error.message, /CAPSULE_EGRESS_GRANT/);
    assert.deepEqual((await client.expect(200, "GET", capsule.path)).json.network, kept);
  });

  test("nothing goes out under none, and reserved addresses under no policy", async () => {
    const dial =
      "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 20)\nexcept OSError as error: print(error.errno)";
    for (const egress of ["none", "public"]) {
      await using capsule = await client.capsule({ network: { egress } });
      assert.equal((await capsule.run("python3", ["-c", dial])).stdout, "113\n", "EHOSTUNREACH");
      // Without an answer of the relay in a second its last decision is not there yet.
      const json = await waitFor("it is shown", async () => {
        const { json: now } = await client.expect(200, "GET", `${capsule.path}/network`);
        return now.recent.length > 0 && now;
      });
      assert.deepEqual([json.effective.egress, json.unsupported], [egress, false]);
      const { verdict, reason, address, port } = json.recent.at(-1);
      const expected = ["denied", egress === "none" ? "egress none" : "reserved", "192.0.2.1", 80];
      assert.deepEqual([verdict, reason, address, port], expected);
    }
  });

  test("a template keeps no network", async () => {
    const capsule = await client.capsule({ network: asked });
    const name = `network-${capsule.id}`;
    await client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name } });
    await using made = await client.capsule({ template: name });
    assert.deepEqual((await client.expect(200, "GET", made.path)).json.network, byDefault);
    await made.destroy();
    await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
  });

  test("links to ports are made in every status and wake nothing", async () => {
    await using capsule = await client.capsule({ auto_resume: true });
    const { json: info } = await client.expect(200, "GET", capsule.path);
    for (const status of ["running", "paused"]) {
      if (status === "paused") await capsule.pause();
      const { json } = await client.expect(200, "POST", `${capsule.path}/ports/8000/url`, {
        json: { expires_sec: 60 },
      });
      assert.equal(json.url, `${info.port_url.replace("{port}", "8000")}/?capsule_token=${json.token}`);
      assert.match(json.token, /^[A-Za-z0-9._~-]+$/);
      await client.expect(204, "DELETE", `${capsule.path}/ports/tokens`);
      assert.equal((await client.expect(200, "GET", capsule.path)).json.status, status);
    }
  });
});
