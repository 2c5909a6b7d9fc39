/** The rules of access to a capsule's ports, as the server in front of them asks for them. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { fakeService, running } from "../../test/fakes/fake-service.ts";
import { Statements } from "../../test/teams/statements.ts";
import { noNetwork } from "../network/policy.ts";

const request = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };

test("access tells the team, the public ports, the Host and the secret, in one read", async () => {
  const statements = new Statements();
  const { capsules, team, settled } = fakeService({ database: statements.database });
  const network = { ...noNetwork, publicPorts: [80, 8_000], hostHeader: "localhost:{port}" };
  const { id } = await capsules.create(team, { ...request, network });
  await settled();
  statements.take();
  const { publicPorts, hostHeader } = network;
  assert.deepEqual(capsules.portAccess(id), { teamId: team, publicPorts, hostHeader, secret: null });
  const [only, ...others] = statements.take();
  assert.match(only!, /^SELECT/);
  assert.deepEqual(others, []);
  const secret = capsules.networks.secret(team, id);
  assert.equal(secret.length, 32);
  assert.deepEqual(capsules.portAccess(id)?.secret, secret);
});

test("access is undefined where there is no capsule, and once it is being destroyed", async () => {
  const service = fakeService();
  const { capsules, team } = service;
  assert.equal(capsules.portAccess("cl-none"), undefined);
  const id = await running(service);
  const destroyed = capsules.destroy(team, id);
  assert.equal(capsules.portAccess(id), undefined, "the request to destroy it was taken");
  await destroyed;
  assert.equal(capsules.portAccess(id), undefined);
});

test("a secret is made once, and renewed on demand", async () => {
  const service = fakeService();
  const { networks } = service.capsules;
  const [id, another] = [await running(service), await running(service)];
  const secret = networks.secret(service.team, id);
  assert.deepEqual(networks.secret(service.team, id), secret);
  assert.notDeepEqual(networks.secret(service.team, another), secret);
  networks.renewSecret(service.team, id);
  assert.notDeepEqual(networks.secret(service.team, id), secret);
  for (const ask of [() => networks.secret(service.other, id), () => networks.renewSecret(service.other, id)])
    assert.throws(ask, { code: "not_found" });
});

test("listeners are told of a new secret and of a new network, after they hold", async () => {
  const service = fakeService();
  const { capsules, team } = service;
  const [id, another] = [await running(service), await running(service)];
  const seen: unknown[] = [];
  const off = capsules.onPortsChanged(id, () => seen.push(capsules.portAccess(id)));
  capsules.networks.renewSecret(team, another);
  capsules.update(team, id, { timeoutSec: 60 });
  assert.deepEqual(seen, [], "another capsule, and a change of something else");

  capsules.networks.renewSecret(team, id);
  assert.deepEqual(seen.splice(0), [capsules.portAccess(id)]);
  capsules.update(team, id, { network: { ...noNetwork, publicPorts: [80] } });
  assert.deepEqual(seen.splice(0), [capsules.portAccess(id)]);
  assert.deepEqual(capsules.portAccess(id)?.publicPorts, [80]);

  off();
  capsules.networks.renewSecret(team, id);
  assert.deepEqual(seen, []);
});

test("no port is public while the policy cannot be read", async () => {
  const service = fakeService();
  const id = await running(service);
  service.database.prepare("UPDATE capsules SET network = '{' WHERE id = ?").run(id);
  assert.deepEqual(service.capsules.portAccess(id), {
    ...{ teamId: service.team, publicPorts: [], hostHeader: null, secret: null },
  });
  assert.deepEqual(service.capsules.get(service.team, id).network, noNetwork);
});
