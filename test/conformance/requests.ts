/** A valid request for each endpoint, and requests that every endpoint refuses. */
import type { Call, Client, Reply } from "../client.ts";
import { type Endpoint, webSockets } from "./specification.ts";

/** A valid id of no capsule. */
export const unknownId = `cl-${"z".repeat(25)}`;

export const malformed = { body: '{"cmd":', headers: { "content-type": "application/json" } };

export interface Target {
  id: string;
  selector?: string;
  template?: string;
}

/** `call` replaces parts of the request. */
export function request(
  client: Client,
  endpoint: Endpoint,
  place: Target,
  call: Call = bodyOf(endpoint, place),
): Promise<Reply> {
  const [method = "", pattern = ""] = endpoint.split(" ");
  const path = pattern
    .replace("{id}", place.id)
    .replace("{selector}", place.selector ?? "proc-00000000")
    .replace("{name}", place.template ?? "no-such-template");
  return webSockets.includes(endpoint) ? client.upgrade(path, call) : client.call(method, path, call);
}

function bodyOf(endpoint: Endpoint, { id }: Target): Call {
  if (endpoint === "POST /v1/snapshots") return { json: { sandbox_id: id, name: "never-made" } };
  if (endpoint.endsWith("/exec")) return { json: { cmd: "true" } };
  if (endpoint.endsWith("/write")) return { form: fileForm("/root/file", "content") };
  if (endpoint.includes("/files/")) return { json: { path: "/root" } };
  return {};
}

export function fileForm(path: string, content: string | Uint8Array): NonNullable<Call["form"]> {
  return [
    ["path", path],
    ["file", typeof content === "string" ? Buffer.from(content) : content],
  ];
}
