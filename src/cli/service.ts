/** The service's address and key: CAPSULE_URL and CAPSULE_API_KEY, else the chosen context, else the local data folder. */
import { join } from "node:path";
import { type Capsule, Client, type WebSocketClass } from "../sdk/sdk.ts";
import { type Context, currentContext } from "./contexts.ts";
import { dataDir, textInDataFolder } from "./data-folder.ts";
import { Failure } from "./failures.ts";

const defaultUrl = "http://127.0.0.1:8080";
const listing = "capsule ls lists the existing ones.";
const wholeId = /^cl-[0-9a-z]{25}$/;
/** Characters of a prefix after `cl-`. */
const prefixLeast = 4;

/** Each of address and key: the variable, else the chosen context's, else the data folder's. */
export function serviceUrl(): string {
  return process.env.CAPSULE_URL || contextHere()?.url || urlHere() || defaultUrl;
}

/** A context's key goes to no other address than its own. */
function keyOfContext(): string | undefined {
  const { CAPSULE_URL } = process.env;
  const context = currentContext();
  return CAPSULE_URL && CAPSULE_URL.replace(/\/+$/, "") !== context?.url ? undefined : context?.apiKey;
}

function contextHere(): Context | undefined {
  try {
    return currentContext();
  } catch {
    return undefined; // connect() throws
  }
}

function urlHere(): string | undefined {
  try {
    return textInDataFolder("url");
  } catch {
    return undefined; // the missing key is reported
  }
}

/** Throws a Failure when the contexts cannot be read. */
export function keyHere(): string | undefined {
  return process.env.CAPSULE_API_KEY || keyOfContext() || textInDataFolder("api-key");
}

/** Throws a Failure when there is no key. `streams`: with the WebSocket of `ws`, which has backpressure. */
export async function connect({ streams = false } = {}): Promise<Client> {
  const apiKey = keyHere();
  if (apiKey === undefined) {
    const where = join(dataDir(), "api-key");
    throw new Failure(
      `there is no API key: CAPSULE_API_KEY is not set, and there is no ${where}`,
      "Log in with capsule login URL, start a server here with ./dev up, or set CAPSULE_URL and CAPSULE_API_KEY.",
    );
  }
  // Throws where serviceUrl, which messages use, does not: the key must not go to another address than the context's.
  const url = process.env.CAPSULE_URL || currentContext()?.url || serviceUrl();
  if (!URL.canParse(url) || !/^https?:/i.test(url))
    throw new Failure(
      `the address of the service is ${JSON.stringify(url)}, which is not a URL`,
      `Example: ${defaultUrl}`,
    );
  const options = { url, apiKey };
  if (!streams) return new Client(options);
  const { WebSocket } = await import("ws");
  return new Client({ ...options, WebSocket: WebSocket as unknown as WebSocketClass });
}

/** By its id, its name, or a prefix of its id that fits no other and has `least` characters. Throws a Failure, or `not_found`. */
export async function capsuleBy(client: Client, id: string, least = prefixLeast): Promise<Capsule> {
  if (wholeId.test(id)) return client.connect(id);
  if (!id.startsWith("cl-")) return capsuleNamed(client, id);
  if (!/^cl-[0-9a-z]*$/.test(id))
    throw new Failure(`${JSON.stringify(id)} is not a capsule's id; ids begin with cl-`, listing);
  if (id.length < "cl-".length + least)
    throw new Failure(`${id} is too short a part of an id: give at least ${least} characters after cl-`, listing);
  const found = (await client.list()).filter((capsule) => capsule.id.startsWith(id));
  if (found.length === 1) return found[0]!;
  if (found.length === 0) throw new Failure(`no capsule's id begins with ${id}`, listing, "not_found");
  throw new Failure(
    `the ids of ${found.length} capsules begin with ${id}`,
    "Give more characters; capsule ls lists the ids.",
  );
}

async function capsuleNamed(client: Client, name: string): Promise<Capsule> {
  const found = await client.list({ name });
  if (found.length === 1) return found[0]!;
  throw new Failure(`there is no capsule named ${JSON.stringify(name)}, and ids begin with cl-`, listing, "not_found");
}
