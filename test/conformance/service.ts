/**
 * The service under test, shared by all conformance tests of a run: the one at CAPSULE_URL with CAPSULE_API_KEY, or
 * else a server that is started here and ended after the last test, or the hosts of a cluster with CAPSULE_TEST_CLUSTER.
 */
import { after } from "node:test";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const { CAPSULE_URL, CAPSULE_API_KEY = "", CAPSULE_TEST_CLUSTER: form } = process.env;

/** Three hosts, none of which a request must know; undefined without CAPSULE_TEST_CLUSTER. */
const cluster = form === undefined ? undefined : await (await import("../cluster/as-one.ts")).hostsAsOne(form);

/** Undefined with CAPSULE_URL, whose server the tests must not operate. In a cluster: its first host. */
export const server = CAPSULE_URL === undefined ? (cluster?.server ?? (await Server.start())) : undefined;

/** A client with the first team's key. */
export const client = await Client.connect(
  cluster?.entry ?? CAPSULE_URL ?? server!.url,
  server?.apiKey ?? CAPSULE_API_KEY,
);

/** Reason for skipping tests that need a second team or revoked keys; false when keys can be made. */
export const cannotMakeKeys = server === undefined ? "the server at CAPSULE_URL cannot be asked for keys" : false;

/** A client of another team. */
export async function clientOf(team: string): Promise<Client> {
  return client.as(await server!.createKey(team));
}

after(async () => {
  client.close();
  await (cluster ?? server)?.[Symbol.asyncDispose]();
});
