/** Requests on a capsule that no host holds, at a host whose question to acquire it is not answered. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { Agent, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { within } from "../../../test/wait-for.ts";
import type { CapsuleError } from "../../wire/errors.ts";
import type { ReleasedCapsule } from "../released.ts";
import { PendingRequests } from "./pending-requests.ts";
import { ReleasedRequests } from "./released-requests.ts";

const capsule = { id: "cl-1", teamId: "team-red" } as ReleasedCapsule;

/** Host b, which says that it has begun to acquire the capsule, and nothing more; it is asked at once. */
async function silentHost() {
  const server = createServer((_request, response) => response.writeProcessing()).listen(0, "127.0.0.1");
  await once(server, "listening");
  const agent = new Agent({ ...{ host: "127.0.0.1", port: (server.address() as AddressInfo).port } } as object);
  const host = { now: 0, isUp: true, isReached: true, taken: 0, probes: 0, ended: false };
  const take = () => {
    host.taken++;
    return { agent, release: () => void host.taken-- };
  };
  const probe = async () => {
    host.probes++;
    return host.isReached;
  };
  const links = { take, isUp: () => host.isUp, isAbsent: () => false, probe };
  const pending = new PendingRequests(links, () => host.now);
  const requests = new ReleasedRequests(
    { hostsFor: () => ["b"], acquire: async () => false },
    { links, pending },
    { beginMs: 60_000 },
  );
  const outcome = requests.place(capsule, "resume").then(
    () => "acquired",
    ({ code, details }: CapsuleError) => ({ code, details }),
  );
  void outcome.then(() => {
    host.ended = true;
  });
  await within("the question", once(server, "request"));
  return {
    ...{ host, outcome },
    /** A check each second, as the timer makes them. */
    async pass(seconds: number) {
      for (let passed = 0; passed < seconds; passed++) {
        host.now += 1_000;
        pending.check();
        await new Promise((resolve) => setImmediate(resolve));
      }
    },
    async [Symbol.asyncDispose]() {
      pending.close();
      agent.destroy();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const refusal = { code: "unavailable", details: { host: "b" } };

test("a host that acquires a capsule, is up and takes no connection for 12 s is given up by its name", async () => {
  await using silent = await silentHost();
  const { host, outcome } = silent;
  await silent.pass(600);
  host.isReached = false;
  await silent.pass(16); // it is asked for a connection each 5 s
  assert.deepEqual([host.ended, host.taken], [false, 1]);
  await silent.pass(1);
  assert.deepEqual(await within("the refusal", outcome), refusal);
  const { probes } = host;
  await silent.pass(60);
  assert.deepEqual([host.taken, host.probes], [0, probes], "nothing waits for it any more");
});

test("a host that acquires a capsule and has expired is given up by its name", async () => {
  await using silent = await silentHost();
  const { host, outcome } = silent;
  host.isUp = false;
  assert.deepEqual(await within("the refusal", outcome), refusal);
  assert.equal(host.taken, 0);
});
