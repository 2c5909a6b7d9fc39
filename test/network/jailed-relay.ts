/** The real relay, in its jail where one is given, with gateway peers of capsules. */
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import type { FromRelay, RelayPolicy, RelaySettings, ToRelay } from "../../src/relay/messages.ts";
import { startRelay } from "../../src/relay/start.ts";
import type { Jail } from "../../src/vmm/jail/jail.ts";
import { GatewayPeer } from "../relay/gateway-peer.ts";
import { policyOf, testLimits } from "../relay/relayed.ts";

export class JailedRelay implements AsyncDisposable {
  readonly child: ChildProcess;
  #run = 0;
  #seq = 0;

  private constructor(child: ChildProcess) {
    this.child = child;
  }

  static async start(jail: Jail | undefined, settings: Partial<RelaySettings>): Promise<JailedRelay> {
    const child = await startRelay({ jail });
    await once(child, "message");
    const relay = new JailedRelay(child);
    const all = { resolvers: [], reserved: [], grants: [], limits: testLimits, ...settings };
    relay.tell({ kind: "settings", settings: all });
    return relay;
  }

  tell(message: ToRelay): void {
    this.child.send(message);
  }

  async attach(policy: Partial<RelayPolicy>): Promise<{ peer: GatewayPeer; run: number }> {
    const { peer, socket } = await GatewayPeer.pair({ isPaused: true });
    const run = ++this.#run;
    const attach: ToRelay = { kind: "attach", run, capsule: `cl-${run}`, team: "team", policy: policyOf(policy) };
    this.child.send(attach, socket);
    await peer.settled();
    return { peer, run };
  }

  async setPolicy(run: number, policy: Partial<RelayPolicy>): Promise<void> {
    const seq = ++this.#seq;
    const applied = this.#answer((message) => message.kind === "applied" && message.seq === seq);
    this.tell({ kind: "policy", run, seq, policy: policyOf(policy) });
    await applied;
  }

  /** One listener for all messages: several that have come together are emitted before a promise goes on. */
  #answer(isIt: (message: FromRelay) => boolean): Promise<FromRelay> {
    const { promise, resolve } = Promise.withResolvers<FromRelay>();
    const take = (message: FromRelay) => {
      if (!isIt(message)) return;
      this.child.off("message", take);
      resolve(message);
    };
    this.child.on("message", take);
    return promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = once(this.child, "exit");
    this.child.disconnect();
    await ended;
  }
}
