/** The places of teams and of clients without a key on the way to another host, and hosts that count as expired. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { createServer } from "node:tls";
import { FakeCluster } from "../../test/fakes/fake-cluster.ts";
import { CapsuleError } from "../wire/errors.ts";
import { peerConnectionsMax, peerKey, peerTls } from "./peer-keys.ts";
import { PeerLinks } from "./peer-links.ts";

function places(links: PeerLinks, team: string | undefined): { count: number; refusal: CapsuleError } {
  for (let count = 0; ; count++) {
    try {
      links.take("a", team);
    } catch (refusal) {
      assert.ok(refusal instanceof CapsuleError);
      return { count, refusal };
    }
  }
}

test("clients without a key get half of the connections together, and are told no host's name", () => {
  const cluster = new FakeCluster();
  cluster.ports.set("a", 1);
  const { holders } = cluster.join("b", () => ({ get: () => undefined, idNamed: () => undefined }));
  const links = new PeerLinks({ holders, hostName: "b", secret: cluster.secret });
  const [keyless, red, blue] = [undefined, "team-red", "team-blue"].map((team) => places(links, team));
  assert.deepEqual(
    [keyless, red, blue].map((each) => each?.count),
    [peerConnectionsMax / 2, peerConnectionsMax / 2, 0],
  );
  assert.deepEqual([keyless?.refusal.code, keyless?.refusal.details], ["unavailable", undefined]);
  assert.doesNotMatch(keyless?.refusal.message ?? "", /host a\b/);
  assert.deepEqual([red?.refusal.code, red?.refusal.details], ["unavailable", { host: "a" }]);
  links.close();
});

test("an expired host whose last probe was answered is asked while the next probe is under way", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] }); // no handshake is too late
  const cluster = new FakeCluster();
  const psk = peerKey(cluster.secret, "b", "a");
  await using server = createServer({ ...peerTls, pskCallback: () => psk }, (socket) => socket.on("error", () => {}));
  await once(server.listen(0, "127.0.0.1"), "listening");
  cluster.ports.set("a", (server.address() as AddressInfo).port);
  const { holders } = cluster.join("b", () => ({ get: () => undefined, idNamed: () => undefined }));
  const links = new PeerLinks({ holders, hostName: "b", secret: cluster.secret });
  const take = () => links.take("a", "team-red").release();
  take();
  assert.equal(await links.reaches("a"), true); // from which no request follows
  cluster.expired.add("a");
  assert.throws(take, { code: "unavailable" });
  assert.equal(await links.probe("a"), true);
  const probed = links.probe("a");
  take();
  assert.equal(await probed, true);
  server.close();
  assert.equal(await links.probe("a"), false);
  assert.throws(take, { code: "unavailable" });
  cluster.expired.delete("a");
  assert.equal(await links.reaches("a"), false);
  links.close();
});
