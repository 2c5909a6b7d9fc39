/** The way out of capsules, which notes what it is told. */
import type { Outbound, OutboundPolicy, OutboundRun, OutboundState } from "../../src/capsules/outbound.ts";

export class FakeOutbound implements Outbound {
  readonly told: [what: string, id: string, policy?: OutboundPolicy][] = [];
  /** Called with each run that begins. */
  onBegan: (run: OutboundRun) => void = () => {};
  /** Changes resolve with it. */
  obeyed: Promise<void> = Promise.resolve();
  known: OutboundState = { connectionsOpen: 0 };

  began(run: OutboundRun): void {
    this.told.push(["began", run.id, run.policy]);
    this.onBegan(run);
  }

  async changed(id: string, policy: OutboundPolicy): Promise<void> {
    this.told.push(["changed", id, policy]);
    await this.obeyed;
  }

  ended(id: string): void {
    this.told.push(["ended", id]);
  }

  async state(): Promise<OutboundState> {
    return this.known;
  }
}
