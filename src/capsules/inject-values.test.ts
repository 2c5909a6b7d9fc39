/** Values of injected headers: sealed in the row, open on the way to the relay, and nowhere else. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FakeHost } from "../../test/fakes/fake-host.ts";
import { FakeOutbound } from "../../test/fakes/fake-outbound.ts";
import { fakeService } from "../../test/fakes/fake-service.ts";
import { SecretKey } from "../secret.ts";

const limits = {
  ...{ network_entries_max: 4, public_ports_max: 4 },
  ...{ inject_rules_max: 4, inject_headers_max: 4, inject_value_max_bytes: 100 },
};
const shape = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
const secret = "s3cret-of-the-test";
const ruled = (headers: Record<string, string | null>, host = "a.example", egress = "public") => ({
  egress,
  inject: [{ host, headers }],
});

function world() {
  const outbound = new FakeOutbound();
  const host = new FakeHost();
  host.networkSocket = "/vm/net.sock";
  const service = fakeService({ host, outbound });
  const { capsules, team } = service;
  const create = async (network: object) => {
    const { id } = await capsules.create(team, { ...shape, ...capsules.networks.parse(network, limits) });
    await service.settled();
    return id;
  };
  const put = async (id: string, network: object) => {
    await capsules.update(team, id, capsules.networks.parse(network, limits, id));
    await capsules.networks.applied(id);
  };
  /** The rules that the relay was told last. */
  const told = () => outbound.told.at(-1)?.[2]?.inject;
  return { ...service, outbound, create, put, told };
}

describe("a value", () => {
  test("reaches the relay with the run, and is in no view and no column in the clear", async () => {
    const { create, told, capsules, team, database } = world();
    const id = await create(ruled({ "X-Key": secret, other: "" }));
    assert.deepEqual(told(), [{ host: "a.example", headers: { "X-Key": secret, other: "" } }]);
    const views = JSON.stringify([capsules.get(team, id), await capsules.networks.view(team, id)]);
    assert.match(views, /a\.example.*X-Key/);
    const row = Object.values(database.prepare("SELECT * FROM capsules WHERE id = ?").get(id) as object).join();
    for (const text of [views, row]) {
      for (const form of [secret, Buffer.from(secret).toString("base64").slice(0, -2)])
        assert.equal(text.includes(form), false);
    }
  });

  test("stays where null is given, by host and name in any case; what is left out is removed", async () => {
    const { create, put, told } = world();
    const id = await create(ruled({ "X-Key": secret, "X-Old": "gone" }));
    await put(id, ruled({ "x-KEY": null, "X-New": "new" }));
    assert.deepEqual(told(), [{ host: "a.example", headers: { "x-KEY": secret, "X-New": "new" } }]);
    for (const network of [ruled({ "X-Old": null }), ruled({ "X-Key": null }, "b.example")])
      await assert.rejects(put(id, network), { code: "invalid_request" });
    await put(id, { egress: "public" });
    assert.equal(told(), undefined);
    await assert.rejects(put(id, ruled({ "X-Key": null })), { code: "invalid_request" });
  });

  test("is replaced where nothing else of the network changes", async () => {
    const { create, put, told } = world();
    const id = await create(ruled({ "X-Key": "old" }));
    await put(id, ruled({ "X-Key": secret }));
    assert.deepEqual(told(), [{ host: "a.example", headers: { "X-Key": secret } }]);
  });

  test("is not told under none, and is kept for a policy that opens something", async () => {
    const { create, put, told } = world();
    const id = await create(ruled({ "X-Key": secret }, "a.example", "none"));
    assert.equal(told(), undefined);
    await put(id, ruled({ "X-Key": null }));
    assert.deepEqual(told(), [{ host: "a.example", headers: { "X-Key": secret } }]);
  });

  test("of a new capsule must be given", async () => {
    await assert.rejects(world().create(ruled({ "X-Key": null })), {
      ...{ code: "invalid_request", details: { field: "network.inject[0].headers.X-Key" } },
    });
  });

  test("that cannot be decrypted is null for the relay, and the capsule runs", async () => {
    const { create, database, host, capsules, team, store, settled } = world();
    const id = await create(ruled({ "X-Key": secret }));
    await capsules.pause(team, id);
    await settled();
    const outbound = new FakeOutbound();
    const next = fakeService({ database, host, outbound, secret: new SecretKey(Buffer.alloc(32, 8)) });
    await next.recover();
    await next.capsules.resume(team, id);
    assert.equal(store.get(id)?.status, "running");
    const told = () => outbound.told.at(-1)?.[2]?.inject;
    assert.deepEqual(told(), [{ host: "a.example", headers: { "X-Key": null } }]);
    const { networks } = next.capsules;
    await next.capsules.update(team, id, networks.parse(ruled({ "X-Key": "given anew" }), limits, id));
    await networks.applied(id);
    assert.deepEqual(told(), [{ host: "a.example", headers: { "X-Key": "given anew" } }]);
  });

  test("that cannot be decrypted is kept for the key that comes back, by a PUT with null too", async () => {
    const { create, database, host, capsules, team, settled } = world();
    const id = await create(ruled({ "X-Key": secret }));
    await capsules.pause(team, id);
    await settled();
    const life = (key: SecretKey) => {
      const outbound = new FakeOutbound();
      return { ...fakeService({ database, host, outbound, secret: key }), outbound };
    };
    const without = life(new SecretKey(Buffer.alloc(32, 8)));
    await without.recover();
    const { networks } = without.capsules;
    const change = networks.parse({ ...ruled({ "X-Key": null }), deny: ["9.9.9.9"] }, limits, id);
    await without.capsules.update(team, id, change);
    const again = life(new SecretKey(Buffer.alloc(32, 7)));
    await again.recover();
    await again.capsules.resume(team, id);
    const policy = again.outbound.told.at(-1)?.[2];
    assert.deepEqual(
      [policy?.deny, policy?.inject],
      [["9.9.9.9"], [{ host: "a.example", headers: { "X-Key": secret } }]],
    );
  });

  test("changes with its policy or not at all, and what was committed holds in the next life", async () => {
    const { create, put, database, host, capsules, team, outbound } = world();
    const id = await create(ruled({ "X-Key": "old" }));
    const both = (told = outbound) => {
      const { deny, inject } = told.told.at(-1)![2]!;
      return [deny, inject?.[0]?.headers];
    };
    const change = { ...ruled({ "X-Key": "new", "X-More": "1" }), deny: ["9.9.9.9"] };
    for (const column of ["network", "inject"]) {
      database.exec(
        `CREATE TRIGGER fails BEFORE UPDATE OF ${column} ON capsules BEGIN SELECT RAISE(ABORT, 'no room'); END`,
      );
      await assert.rejects(put(id, change), /no room/);
      database.exec("DROP TRIGGER fails");
      await capsules.networks.applied(id);
      assert.deepEqual(both(), [[], { "X-Key": "old" }], `the write of ${column} failed`);
    }
    await capsules.update(team, id, capsules.networks.parse(change, limits, id)); // the end comes before the relay is told
    const next = new FakeOutbound();
    const life = fakeService({ database, host, outbound: next });
    await life.recover();
    await life.settled();
    await life.capsules.networks.applied(id);
    assert.deepEqual(both(next), [["9.9.9.9"], { "X-Key": "new", "X-More": "1" }]);
  });

  test("opens for no other capsule, host or name", async () => {
    const { create, database, capsules, told } = world();
    const [id, another] = [await create(ruled({ "X-Key": secret })), await create(ruled({ "X-Key": "other" }))];
    const { inject } = database.prepare("SELECT inject FROM capsules WHERE id = ?").get(id) as { inject: string };
    database.prepare("UPDATE capsules SET inject = ? WHERE id = ?").run(inject, another);
    await capsules.networks.applied(another);
    assert.deepEqual(told(), [{ host: "a.example", headers: { "X-Key": null } }]);
    database.prepare("UPDATE capsules SET inject = ? WHERE id = ?").run("{", another);
    await capsules.networks.applied(another);
    assert.deepEqual(told(), [{ host: "a.example", headers: { "X-Key": null } }]);
  });
});
