/** Keys through the API: a team creates, lists and revokes them, and signs in a browser by a link. */
import assert from "node:assert/strict";
import { section, test } from "../conforms.ts";
import { client, server, shown } from "../service.ts";

export const keys = section(import.meta, "keys and sign-in", () => {
  test("a key created through the API works until it is revoked", async () => {
    const { json: made } = await client.expect(201, "POST", "/v1/keys", { json: { name: "of a test" } });
    const other = client.as(made.key);
    const { json: session } = await other.expect(200, "GET", "/v1/session");
    assert.deepEqual([session.key_id, session.key_name], [made.id, "of a test"]);

    const { json } = await other.expect(200, "GET", "/v1/keys");
    const listed = json.keys.find((each: { id: string }) => each.id === made.id);
    assert.equal(listed.current, true);
    assert.equal(listed.prefix, made.key.slice(0, 9));
    assert.ok(Date.parse(listed.last_used_at) >= Date.parse(listed.created_at));

    await other.expect(204, "DELETE", `/v1/keys/${made.id}`);
    await shown(async () => void (await other.expect(401, "GET", "/v1/capsules")));
    await shown(async () => void (await client.expect(404, "DELETE", `/v1/keys/${made.id}`)));
  });

  test(
    "a key revoked by the operator's command is refused by the running server at once",
    async () => {
      const key = await server!.createKey("default", "to be revoked by hand");
      await client.as(key).expect(200, "GET", "/v1/session");
      await server!.revokeKeys("to be revoked by hand");
      await shown(async () => void (await client.as(key).expect(401, "GET", "/v1/session")));
    },
    { skip: server === undefined && "the keys of the server at CAPSULE_URL must not be revoked" },
  );

  test("a sign-in link gives one browser a key of the same team", async () => {
    const { json: link } = await client.expect(201, "POST", "/v1/sign-in-links");
    assert.ok(Date.parse(link.expires_at) - Date.now() <= 300_000);
    const { json: signedIn } = await client.expect(200, "POST", "/v1/sign-in", {
      key: null,
      json: { token: link.token },
    });
    await client.expect(401, "POST", "/v1/sign-in", { key: null, json: { token: link.token } });
    const browser = client.as(signedIn.key);
    const [theirs, ours] = await Promise.all([browser, client].map((each) => each.expect(200, "GET", "/v1/session")));
    assert.equal(theirs!.json.team, ours!.json.team);
    assert.equal(theirs!.json.expires_at, signedIn.expires_at);
    await browser.expect(204, "DELETE", `/v1/keys/${signedIn.key_id}`);
  });
});
