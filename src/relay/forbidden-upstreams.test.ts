/** Connections that are not open for the guest, and still stand outside: being dialled, or with bytes that their peers do not take. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Relayed } from "../../test/relay/relayed.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Dialled, Dialler, Receiver, Upstream } from "./dialler.ts";

/** Dials when told to, and then the last address. Its peers say nothing, end, and take no byte. */
class SlowDialler implements Dialler {
  readonly #gate = Promise.withResolvers<void>();
  dials = 0;
  resets = 0;

  async dial(addresses: readonly number[]): Promise<Dialled> {
    this.dials++;
    await this.#gate.promise;
    let receiver: Receiver | undefined;
    let isReset = false;
    const upstream: Upstream = {
      address: addresses.at(-1)!,
      receive: (given) => {
        receiver = given;
        queueMicrotask(() => given.ended());
      },
      write: () => {},
      end: () => {},
      pause: () => {},
      resume: () => {},
      reset: () => {
        if (isReset) return;
        isReset = true;
        this.resets++;
        queueMicrotask(() => receiver?.closed(false));
      },
    };
    return { upstream };
  }

  open(): void {
    this.#gate.resolve();
  }
}

function relayed() {
  const dialler = new SlowDialler();
  return { relay: new Relayed({ "a.example": ["9.9.9.1", "9.9.9.2"] }, {}, dialler), dialler };
}

describe("bytes that were passed on, and that the peer outside does not take", () => {
  async function left() {
    const { relay, dialler } = relayed();
    dialler.open();
    const { peer, run } = await relay.attach({ egress: "public" });
    const stream = await peer.connected("9.9.9.9", 22);
    stream.end("hello");
    assert.equal(await stream.text(), "");
    await peer.addresses("localhost"); // the relay has read the end
    assert.deepEqual([relay.connectionsOpen(run), dialler.resets], [1, 0]);
    return { relay, dialler, run };
  }

  test("are dropped by a policy that forbids the connection, and kept by one that does not", async () => {
    const { relay, dialler, run } = await left();
    await using _ = relay;
    relay.setPolicy(run, { allow: ["9.9.9.9"] });
    assert.equal(dialler.resets, 0);
    relay.setPolicy(run, { allow: ["9.9.9.8"] });
    assert.equal(dialler.resets, 1);
    await waitFor("the connection is gone", () => relay.connectionsOpen(run) === 0);
  });

  test("are dropped with the run", async () => {
    const { relay, dialler, run } = await left();
    await using _ = relay;
    relay.runs.take({ kind: "detach", run });
    assert.equal(dialler.resets, 1);
  });
});

test("an address that a policy has come to forbid while it was dialled with others of its name is not kept", async () => {
  const { relay, dialler } = relayed();
  await using _ = relay;
  const { peer, run } = await relay.attach({ allow: ["a.example"] });
  const stream = await peer.connected("8.8.8.8", 80);
  stream.end("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
  await waitFor("it is dialled", () => dialler.dials === 1);
  relay.setPolicy(run, { allow: ["a.example"], deny: ["9.9.9.2"] });
  dialler.open();
  assert.equal(await stream.outcome(), "reset");
  assert.equal(dialler.resets, 1);
  assert.equal(relay.recent(run).at(-1), "denied not listed a.example 9.9.9.2 80");
});
