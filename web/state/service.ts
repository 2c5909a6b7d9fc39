/** The dashboard's use of the SDK: the client of the signed-in key, and the requests that the SDK has no method for. */
import type { Static } from "typebox";
import { type Capsule, Client, type ProcessInfo } from "../../src/sdk/sdk.ts";
import type { AuditPage } from "../../src/wire/audit.ts";
import { statusOf } from "../../src/wire/errors.ts";
import type { Health } from "../../src/wire/health.ts";
import type { LimitsAndUsage } from "../../src/wire/limits.ts";
import { uploadFetch } from "./upload-fetch.ts";

export type Limits = Static<typeof LimitsAndUsage>;

const auditEntries = 100;
const keys = new WeakMap<Client, string>();

/** Calls `onUnauthorized` when the service refuses the key, whatever the request. */
export function clientOf(key: string, onUnauthorized: () => void): Client {
  const watched: typeof fetch = async (input, init) => {
    const response = await fetch(input, init);
    if (response.status === statusOf.unauthorized) onUnauthorized();
    return response;
  };
  const client = new Client({ apiKey: key, fetch: watched });
  keys.set(client, key);
  return client;
}

/** The same client for an upload: `onProgress` is told the share that was sent. */
export function uploadingClient(client: Client, onProgress: (share: number) => void): Client {
  return new Client({ apiKey: keys.get(client)!, fetch: uploadFetch(onProgress) });
}

/** The body of 200 and of 503 is the same. */
export async function healthOf(client: Client): Promise<Health> {
  return (await fetch("/healthz", { headers: { "x-api-key": keys.get(client)! } })).json();
}

/** With the team's usage. */
export function limitsOf(client: Client): Promise<Limits> {
  return client.request({ method: "GET", path: "/v1/limits" });
}

/** A page of the audit log, newest first. */
export function auditOf(
  client: Client,
  before: string | undefined,
  capsule: string | undefined,
): Promise<Static<typeof AuditPage>> {
  return client.request({ method: "GET", path: "/v1/audit", query: { limit: auditEntries, before, capsule } });
}

/** The terminal sessions that run in a capsule, of every client. */
export async function sessionsIn(capsule: Capsule): Promise<ProcessInfo[]> {
  return (await capsule.processes({ resume: false })).filter(({ tag }) => tag.startsWith("pty-"));
}
