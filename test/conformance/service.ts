/**
 * The service under test, shared by all conformance tests of a run: the one at CAPSULE_URL with CAPSULE_API_KEY, or
 * else a server that is started here and ended after the last test, or the hosts of a cluster with CAPSULE_TEST_CLUSTER.
 */
import { AssertionError } from "node:assert/strict";
import { after } from "node:test";
import { Client } from "../client.ts";
import { Server } from "../server.ts";
import { waitFor } from "../wait-for.ts";

const { CAPSULE_URL, CAPSULE_API_KEY = "", CAPSULE_TEST_CLUSTER: form } = process.env;

/** Three hosts, none of which a request must know; undefined without CAPSULE_TEST_CLUSTER. */
const cluster = form === undefined ? undefined : await (await import("../cluster/as-one.ts")).hostsAsOne(form);

/** Undefined with CAPSULE_URL, whose server the tests must not operate. In a cluster: its first host. */
export const server = CAPSULE_URL === undefined ? (cluster?.server ?? (await Server.start())) : undefined;

/** The server of each host in a cluster; none with CAPSULE_URL. */
const servers = cluster?.daemons.hosts.map((host) => host.server) ?? (server === undefined ? [] : [server]);

/** Announces errors that the test causes, in the log of whichever host answers. */
export function expectErrors(...patterns: RegExp[]): void {
  for (const { log } of servers) log.expect(...patterns);
}

/** Logged errors that no test has announced. */
export async function unexpectedErrors(): Promise<string[]> {
  return (await Promise.all(servers.map(({ log }) => log.unexpected()))).flat();
}

/** A client with the first team's key. */
export const client = await Client.connect(
  cluster?.entry ?? CAPSULE_URL ?? server!.url,
  server?.apiKey ?? CAPSULE_API_KEY,
);

/** Reason for skipping tests that need a second team or revoked keys; false when keys can be made. */
export const cannotMakeKeys = server === undefined ? "the server at CAPSULE_URL cannot be asked for keys" : false;

/** Reason for skipping, in a cluster, a test whose expectation is one host's. */
export function ofOneHost(why: string): string | false {
  return cluster === undefined ? false : `in a cluster ${why}`;
}

/** As `ofOneHost`, where each request may come to another host. */
export function ofFirstHost(why: string): string | false {
  return form === "round" ? `in a cluster ${why}` : false;
}

/** Clocks of two hosts may differ by so much, for which tickets are good longer. */
export const skewMs = cluster === undefined ? 0 : 2_000;

/** Checks once; in a cluster until it holds: lists, audit entries and ended keys are shown by the other hosts a moment later. */
export async function shown(check: () => Promise<void>): Promise<void> {
  if (cluster === undefined) return await check();
  let refusal: unknown;
  await waitFor(
    () => `another host to show it: ${refusal}`,
    async () => {
      try {
        await check();
        return true;
      } catch (error) {
        if (!(error instanceof AssertionError)) throw error;
        refusal = error;
        return false;
      }
    },
  );
}

/** A client of another team. */
export async function clientOf(team: string): Promise<Client> {
  return client.as(await server!.createKey(team));
}

after(async () => {
  client.close();
  await (cluster ?? server)?.[Symbol.asyncDispose]();
});
