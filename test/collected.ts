/** Listings of an agent as arrays. */
import type { Agent, GuestEntry, GuestProcess, ListingSink } from "../src/agent/agent.ts";

export class Collected<Item> implements ListingSink<Item> {
  readonly items: Item[] = [];
  item(item: Item): void {
    this.items.push(item);
  }
  reserve(): void {}
}

export async function entriesOf(
  agent: Agent,
  path: string,
  depth: number,
  entriesMax: number,
  signal?: AbortSignal,
): Promise<GuestEntry[]> {
  const collected = new Collected<GuestEntry>();
  await agent.list({ path, depth, entriesMax, bytesMax: 64 << 20 }, collected, signal);
  return collected.items;
}

export async function processesOf(agent: Agent, signal?: AbortSignal): Promise<GuestProcess[]> {
  const collected = new Collected<GuestProcess>();
  await agent.processes(collected, signal);
  return collected.items;
}
