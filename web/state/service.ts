/** What the dashboard asks of the service: the SDK with the key of whoever is signed in. */
import type { Static } from "typebox";
import {
  type Capsule,
  type CapsuleInfo,
  Client,
  type CreateOptions,
  type EventOptions,
  type FileEntry,
  hasCode,
  type KeyInfo,
  type NewKey,
  type ProcessInfo,
  type Pty,
  type PtyConnection,
  type ServiceEvent,
  type SessionInfo,
  type TemplateInfo,
} from "../../src/sdk/sdk.ts";
import type { AuditPage } from "../../src/wire/audit.ts";
import type { LimitsAndUsage } from "../../src/wire/limits.ts";
import type { Signal } from "../../src/wire/process.ts";

/** A file's beginning; `isCut`: there is more of it. */
export interface Beginning {
  bytes: Uint8Array;
  isCut: boolean;
}

/** Exchanges the token of a one-time link for a key. */
export async function redeemLink(token: string): Promise<string> {
  return (await Client.signIn(token)).key;
}

export class Service {
  readonly #client: Client;
  readonly #onUnauthorized: () => void;

  constructor(key: string, onUnauthorized: () => void) {
    this.#client = new Client({ apiKey: key });
    this.#onUnauthorized = onUnauthorized;
  }

  session(): Promise<SessionInfo> {
    return this.#ask(() => this.#client.session());
  }

  // ---- Capsules

  async capsules(): Promise<CapsuleInfo[]> {
    return (await this.#ask(() => this.#client.list())).map(({ info }) => info);
  }

  /** Resolves at once; the capsule is on its way. */
  async create(options: CreateOptions): Promise<CapsuleInfo> {
    return (await this.#ask(() => this.#client.create({ ...options, wait: false }))).info;
  }

  async pause(id: string): Promise<CapsuleInfo> {
    return (await this.#in(id, (capsule) => capsule.pause())).info;
  }

  async resume(id: string): Promise<CapsuleInfo> {
    return (await this.#in(id, (capsule) => capsule.resume())).info;
  }

  async destroy(id: string): Promise<void> {
    try {
      await this.#in(id, (capsule) => capsule.destroy());
    } catch (error) {
      if (!hasCode(error, "not_found")) throw error;
    }
  }

  /** Makes a template of it and destroys it; an empty name: one is made up. */
  capture(id: string, name: string, overwrite: boolean): Promise<TemplateInfo> {
    return this.#in(id, (capsule) => capsule.snapshot(name === "" ? undefined : name, { overwrite }));
  }

  // ---- Inside a capsule

  processes(id: string): Promise<ProcessInfo[]> {
    return this.#in(id, (capsule) => capsule.processes());
  }

  signal(id: string, pid: number, signal: Signal): Promise<void> {
    return this.#in(id, (capsule) => capsule.process(pid).kill(signal));
  }

  /** Sessions that run in it, whoever started them. */
  async terminals(id: string): Promise<ProcessInfo[]> {
    return (await this.processes(id)).filter(({ tag }) => tag.startsWith("pty-"));
  }

  /** A new terminal, or the one that has this tag. */
  terminal(id: string, tag: string | undefined, connection: PtyConnection): Promise<Pty> {
    return this.#in(id, (capsule) => (tag === undefined ? capsule.pty(connection) : capsule.rejoin(tag, connection)));
  }

  /** What is in a folder. */
  files(id: string, path: string): Promise<FileEntry[]> {
    return this.#in(id, ({ files }) => files.list(path));
  }

  /** Whether a symbolic link leads to a folder: one that does not is listed as itself. */
  async isFolder(id: string, path: string): Promise<boolean> {
    const [first] = await this.files(id, path);
    return first?.path !== path;
  }

  /** The browser holds it, on disk if it is large. */
  readFile(id: string, path: string): Promise<Blob> {
    return this.#in(id, async ({ files }) => new Response(await files.readStream(path)).blob());
  }

  readBeginning(id: string, path: string, maxBytes: number): Promise<Beginning> {
    return this.#in(id, async ({ files }) => {
      const reader = (await files.readStream(path)).getReader();
      const pieces: Uint8Array<ArrayBuffer>[] = [];
      let heardBytes = 0;
      while (heardBytes <= maxBytes) {
        const { value, done } = await reader.read();
        if (done) break;
        pieces.push(value);
        heardBytes += value.length;
      }
      await reader.cancel();
      const bytes = new Uint8Array(await new Blob(pieces).arrayBuffer());
      return { bytes: bytes.subarray(0, maxBytes), isCut: heardBytes > maxBytes };
    });
  }

  writeFile(id: string, path: string, content: Blob): Promise<void> {
    return this.#in(id, ({ files }) => files.write(path, content));
  }

  async makeDirectory(id: string, path: string): Promise<void> {
    await this.#in(id, ({ files }) => files.mkdir(path));
  }

  removeFile(id: string, path: string): Promise<void> {
    return this.#in(id, ({ files }) => files.remove(path));
  }

  // ---- The team

  templates(): Promise<TemplateInfo[]> {
    return this.#ask(() => this.#client.templates.list());
  }

  deleteTemplate(name: string): Promise<void> {
    return this.#ask(() => this.#client.templates.remove(name));
  }

  keys(): Promise<KeyInfo[]> {
    return this.#ask(() => this.#client.keys.list());
  }

  createKey(name: string): Promise<NewKey> {
    return this.#ask(() => this.#client.keys.create(name));
  }

  revokeKey(id: string): Promise<void> {
    return this.#ask(() => this.#client.keys.revoke(id));
  }

  /** The numbers a request can run into, and what the team has of them. */
  limits(): Promise<Static<typeof LimitsAndUsage>> {
    return this.#ask(() => this.#client.request({ method: "GET", path: "/v1/limits" }));
  }

  /** A page of the audit log, newest first. */
  audit(before: string | undefined, capsule: string | undefined): Promise<Static<typeof AuditPage>> {
    const query = { limit: 100, before, capsule };
    return this.#ask(() => this.#client.request({ method: "GET", path: "/v1/audit", query }));
  }

  /** Throws when the service cannot be reached for long, or refuses. */
  async *events(options: EventOptions): AsyncGenerator<ServiceEvent, void, undefined> {
    try {
      yield* this.#client.events(options);
    } catch (error) {
      throw this.#heed(error);
    }
  }

  async #in<T>(id: string, work: (capsule: Capsule) => Promise<T>): Promise<T> {
    return this.#ask(async () => work(await this.#client.connect(id)));
  }

  async #ask<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      throw this.#heed(error);
    }
  }

  /** A key that is no longer valid ends the session, wherever it was noticed. */
  #heed(error: unknown): unknown {
    if (hasCode(error, "unauthorized")) this.#onUnauthorized();
    return error;
  }
}
