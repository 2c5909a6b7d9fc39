/** What the dashboard asks of the service, with the key of whoever is signed in. */
import type { Static } from "typebox";
import type { AuditPage } from "../../src/wire/audit.ts";
import type { Capsule } from "../../src/wire/capsule.ts";
import { captureSubject } from "../../src/wire/capture-subject.ts";
import type { FileEntry } from "../../src/wire/file.ts";
import type { Key, NewKey } from "../../src/wire/key.ts";
import type { Limits } from "../../src/wire/limits.ts";
import type { Process, Signal } from "../../src/wire/process.ts";
import type { Session, SignedIn } from "../../src/wire/sign-in.ts";
import type { Template } from "../../src/wire/template.ts";
import type { Ticket } from "../../src/wire/ticket.ts";
import { followEvents, type ServiceEvent } from "./events.ts";
import { ask, Refusal, type Request } from "./requests.ts";

export type { ServiceEvent } from "./events.ts";
export type SessionInfo = Static<typeof Session>;
export type ApiKey = Key;

export interface CreateRequest {
  template: string;
  vcpus: number;
  memory_mb: number;
  timeout_sec: number;
}

/** A file's beginning; `isCut`: there is more of it. */
export interface Beginning {
  bytes: Uint8Array;
  isCut: boolean;
}

/** Exchanges the token of a one-time link for a key. */
export async function redeemLink(token: string): Promise<string> {
  const answer = await ask("/v1/sign-in", { method: "POST", json: { token } });
  return ((await answer.json()) as Static<typeof SignedIn>).key;
}

export class Service {
  readonly #key: string;
  readonly #onUnauthorized: () => void;

  constructor(key: string, onUnauthorized: () => void) {
    this.#key = key;
    this.#onUnauthorized = onUnauthorized;
  }

  session(): Promise<SessionInfo> {
    return this.#json("/v1/session");
  }

  capsules(): Promise<Capsule[]> {
    return this.#json("/v1/capsules");
  }

  create(request: CreateRequest): Promise<Capsule> {
    return this.#json("/v1/capsules", { method: "POST", json: request });
  }

  pause(id: string): Promise<Capsule> {
    return this.#json(`${pathOf(id)}/pause`, { method: "POST" });
  }

  resume(id: string): Promise<Capsule> {
    return this.#json(`${pathOf(id)}/resume`, { method: "POST" });
  }

  async destroy(id: string): Promise<void> {
    await this.#ask(pathOf(id), { method: "DELETE" });
  }

  /** Makes a template of it and destroys it; an empty name: one is made up. */
  capture(id: string, name: string, overwrite: boolean): Promise<Template> {
    const json = { [captureSubject]: id, ...(name === "" ? {} : { name }) };
    return this.#json(`/v1/snapshots${overwrite ? "?overwrite=true" : ""}`, { method: "POST", json });
  }

  templates(): Promise<Template[]> {
    return this.#json("/v1/snapshots");
  }

  async deleteTemplate(name: string): Promise<void> {
    await this.#ask(`/v1/snapshots/${encodeURIComponent(name)}`, { method: "DELETE" });
  }

  async processes(id: string): Promise<Process[]> {
    return (await this.#json<{ processes: Process[] }>(`${pathOf(id)}/processes`)).processes;
  }

  async signal(id: string, pid: number, signal: Signal): Promise<void> {
    await this.#ask(`${pathOf(id)}/processes/${pid}?signal=${signal}`, { method: "DELETE" });
  }

  /** What is in a folder. */
  async files(id: string, path: string): Promise<FileEntry[]> {
    const json = { path, depth: 1 };
    return (await this.#json<{ entries: FileEntry[] }>(`${pathOf(id)}/files/list`, { method: "POST", json })).entries;
  }

  async readFile(id: string, path: string): Promise<Blob> {
    return (await this.#ask(`${pathOf(id)}/files/stream/read`, { method: "POST", json: { path } })).blob();
  }

  async readBeginning(id: string, path: string, maxBytes: number): Promise<Beginning> {
    const answer = await this.#ask(`${pathOf(id)}/files/stream/read`, { method: "POST", json: { path } });
    const reader = answer.body!.getReader();
    const pieces: Uint8Array<ArrayBuffer>[] = [];
    let heard = 0;
    while (heard <= maxBytes) {
      const { value, done } = await reader.read();
      if (done) break;
      pieces.push(value);
      heard += value.length;
    }
    await reader.cancel();
    const bytes = new Uint8Array(await new Blob(pieces).arrayBuffer());
    return { bytes: bytes.subarray(0, maxBytes), isCut: heard > maxBytes };
  }

  async writeFile(id: string, path: string, content: Blob): Promise<void> {
    const form = new FormData();
    form.set("path", path);
    form.set("file", content);
    await this.#ask(`${pathOf(id)}/files/stream/write`, { method: "POST", form });
  }

  async makeDirectory(id: string, path: string): Promise<void> {
    await this.#ask(`${pathOf(id)}/files/mkdir`, { method: "POST", json: { path } });
  }

  async removeFile(id: string, path: string): Promise<void> {
    await this.#ask(`${pathOf(id)}/files/remove`, { method: "POST", json: { path } });
  }

  async keys(): Promise<ApiKey[]> {
    return (await this.#json<{ keys: ApiKey[] }>("/v1/keys")).keys;
  }

  createKey(name: string): Promise<Static<typeof NewKey>> {
    return this.#json("/v1/keys", { method: "POST", json: { name } });
  }

  async revokeKey(id: string): Promise<void> {
    await this.#ask(`/v1/keys/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  limits(): Promise<Limits> {
    return this.#json("/v1/limits");
  }

  /** A page of the audit log, newest first. */
  audit(before: string | undefined, capsule: string | undefined): Promise<Static<typeof AuditPage>> {
    const query = new URLSearchParams({ limit: "100" });
    if (before !== undefined) query.set("before", before);
    if (capsule !== undefined) query.set("capsule", capsule);
    return this.#json(`/v1/audit?${query}`);
  }

  /** Ends when the signal aborts or the key is no longer valid. */
  events(signal: AbortSignal): AsyncIterable<ServiceEvent> {
    const connect = async (lastId: string | undefined) => {
      const headers = lastId === undefined ? {} : { "last-event-id": lastId };
      try {
        return await this.#ask("/v1/events", { headers, signal });
      } catch (error) {
        if (error instanceof Refusal && error.status === 401) return false;
        throw error;
      }
    };
    return followEvents(connect, signal);
  }

  /** A socket to the capsule's terminals; a browser can send no key with it, so a ticket goes along. */
  async ptySocket(id: string): Promise<WebSocket> {
    const path = `${pathOf(id)}/pty`;
    const { ticket } = await this.#json<Static<typeof Ticket>>("/v1/ws-tickets", { method: "POST", json: { path } });
    const url = new URL(`${path}?ticket=${encodeURIComponent(ticket)}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    return new WebSocket(url);
  }

  async #json<T>(path: string, request: Request = {}): Promise<T> {
    return (await this.#ask(path, request)).json() as Promise<T>;
  }

  async #ask(path: string, request: Request): Promise<Response> {
    try {
      return await ask(path, { ...request, key: this.#key });
    } catch (error) {
      if (error instanceof Refusal && error.status === 401) this.#onUnauthorized();
      throw error;
    }
  }
}

function pathOf(id: string): string {
  return `/v1/capsules/${encodeURIComponent(id)}`;
}
