/** The findings of `capsule doctor` about the ways between the hosts of a cluster. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { newClusterFile, writeClusterFile } from "../../src/cluster/cluster-file.ts";
import { newNonce, writeHostFile } from "../../src/cluster/host-file.ts";
import { peerFindings } from "../../src/operator/peers-check.ts";
import { waitFor } from "../wait-for.ts";
import { hostOfCluster, secretOf } from "./fake-hosts.ts";
import { lacksPostgres, PostgresServer } from "./postgres-server.ts";
import { about, clusterDatabase } from "./statements.ts";

const skip = lacksPostgres;
const server = lacksPostgres === false ? await PostgresServer.start() : undefined!;
const folder = mkdtempSync(join(tmpdir(), "capsule-peers-check-"));
after(async () => {
  rmSync(folder, { recursive: true });
  await server?.stop();
});

/** A port that ends each connection, and that nobody else is given. */
async function refusingPort(): Promise<{ port: number } & Disposable> {
  const taken = createServer((socket) => socket.destroy());
  await new Promise<void>((resolve) => taken.listen(0, "127.0.0.1", resolve));
  return { port: (taken.address() as { port: number }).port, [Symbol.dispose]: () => void taken.close() };
}

test("hosts that do not reach each other, one way or the other, or have other secrets are warnings", {
  skip,
}, async () => {
  await using database = await clusterDatabase(server);
  await using one = await hostOfCluster(database, "a");
  await using two = await hostOfCluster(database, "b");
  await database.sql.query("UPDATE hosts SET state = 'gone' WHERE name = 'c'", [], about);
  const made = newClusterFile(database.url, Buffer.alloc(32, 1), undefined);
  const [path, foreign] = [join(folder, "cluster.json"), join(folder, "foreign.json")];
  writeClusterFile(path, { ...made, secret: secretOf(database) });
  writeClusterFile(foreign, made);
  assert.deepEqual(await peerFindings(path, folder, true), [], "the folder has joined no cluster");
  writeHostFile(folder, { cluster: made.cluster, name: "a", nonce: newNonce(), epoch: 1, limits: {} });
  /** A busy machine may miss the time of a handshake. */
  const until = (pattern: RegExp, { file = path, isServed = true } = {}) =>
    waitFor(`the findings to be ${pattern}`, async () => {
      for (const host of [one, two]) await host.second();
      const findings = await peerFindings(file, folder, isServed);
      return pattern.test(findings.map(({ word, text }) => `${word}: ${text}`).join());
    });
  await until(/^ok: reached, and reach this host: b$/);
  await until(/^ok: reached: b; with the server running/, { isServed: false });
  await until(/^warning: host b at 127\.0\.0\.1:\d+ has not proven the cluster's secret/, { file: foreign });

  using refusing = await refusingPort();
  const move = (name: string, port: number) =>
    database.sql.query("UPDATE hosts SET port = $1 WHERE name = $2", [port, name], about);
  await move("a", refusing.port);
  await until(new RegExp(`^warning: host b does not reach this one at 127.0.0.1:${refusing.port}: `));
  await until(/^ok: /, { isServed: false });
  await move("b", refusing.port);
  await until(new RegExp(`^warning: host b at 127.0.0.1:${refusing.port} cannot be reached`));

  await database.sql.query("UPDATE hosts SET state = 'gone' WHERE name = 'b'", [], about);
  await until(/^$/);
  writeFileSync(path, "{");
  assert.deepEqual(await peerFindings(path, folder, true), []);
});

test("without the database the hosts are tried that the folder knows", { skip }, async () => {
  const own = mkdtempSync(join(folder, "known-"));
  const path = join(own, "cluster.json");
  const made = newClusterFile("postgres://nobody@localhost:1/nothing", Buffer.alloc(32, 1), undefined);
  writeClusterFile(path, made);
  using refusing = await refusingPort();
  const hosts = [{ name: "two", address: "127.0.0.1", port: refusing.port, epoch: 1 }];
  writeHostFile(own, { cluster: made.cluster, name: "one", nonce: newNonce(), epoch: 1, limits: {}, hosts });
  const [finding] = await peerFindings(path, own, true);
  assert.match(finding?.text ?? "", /^host two at 127\.0\.0\.1:\d+ cannot be reached from here/);
});
