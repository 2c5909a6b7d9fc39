/**
 * The one service that all conformance tests of a run talk to: the one named by CAPSULE_URL and CAPSULE_API_KEY, or a
 * server of their own, started here and ended after the last test.
 */
import { after } from "node:test";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const { CAPSULE_URL, CAPSULE_API_KEY = "" } = process.env;

/** undefined: the tests are pointed at a server that is not theirs to operate. */
export const server = CAPSULE_URL === undefined ? await Server.start() : undefined;

/** With the first team's key. */
export const client = await Client.connect(CAPSULE_URL ?? server!.url, server?.apiKey ?? CAPSULE_API_KEY);

/** For tests of a second team, or of revoked keys: why they cannot run here, or false. */
export const cannotMakeKeys =
  server === undefined ? "CAPSULE_URL names a server whose keys are not ours to make" : false;

/** A client of another team. */
export async function clientOf(team: string): Promise<Client> {
  return client.as(await server!.createKey(team));
}

let isOver = false;
after(async () => {
  isOver = true;
  client.close();
  await server?.[Symbol.asyncDispose]();
});
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(1));
process.once("exit", () => {
  if (!isOver) server?.abandon();
});
