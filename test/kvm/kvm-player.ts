/**
 * A client that works until the power is cut, and then holds the service to what it had acknowledged: capsules and
 * templates that were made are listed, those deleted are not, a paused capsule has the files of its last pause.
 */
import assert from "node:assert/strict";
import type { Client, Reply } from "../client.ts";
import type { Random } from "../conformance/random.ts";

interface Owned {
  id: string;
  /** `unsure`: a request that changes it was under way at the cut. */
  state: "running" | "paused" | "unsure";
  /** Path → content; of a paused capsule all of them, of a running one those that a pause would keep. */
  files: Map<string, string>;
  /** Without its template, which goes after each cut, a paused capsule cannot be resumed. */
  template: string | undefined;
}

const mostCapsules = 3;
const mostTemplates = 2;

export class KvmPlayer {
  readonly #name: string;
  readonly #random: Random;
  readonly #owned = new Map<string, Owned>();
  readonly #gone = new Set<string>();
  /** Template → the files in it. */
  readonly #templates = new Map<string, Map<string, string>>();
  #serial = 0;
  #steps = 0;
  #onStep = () => {};

  constructor(name: string, random: Random) {
    this.#name = name;
    this.#random = random;
  }

  /** Its capsules. */
  get ids(): string[] {
    return [...this.#owned.keys()];
  }

  /**
   * Resolves, when the power has been cut, with how many steps the service had acknowledged; `onStep` is called at each. A
   * connection that ends before that is an error.
   */
  async play(client: Client, hasPower: () => boolean, onStep: () => void): Promise<number> {
    this.#steps = 0;
    this.#onStep = onStep;
    try {
      for (;;) await this.#act(client);
    } catch (error) {
      if (hasPower() || !isConnectionsEnd(error)) throw error;
      return this.#steps;
    }
  }

  async #act(client: Client): Promise<void> {
    const capsules = [...this.#owned.values()].filter(({ state }) => state !== "unsure");
    if (capsules.length === 0 || (capsules.length < mostCapsules && this.#random.below(4) === 0)) {
      await this.#create(client);
      return;
    }
    const capsule = capsules[this.#random.below(capsules.length)]!;
    if (this.#random.below(12) === 0) return this.#destroy(client, capsule);
    if (capsule.state === "paused") return this.#change(client, capsule, "resume", "running");
    const dice = this.#random.below(10);
    if (dice < 5) return this.#write(client, capsule);
    if (dice < 9 || this.#templates.size >= mostTemplates) return this.#change(client, capsule, "pause", "paused");
    return this.#capture(client, capsule);
  }

  async #create(client: Client): Promise<void> {
    const names = [...this.#templates.keys()];
    const template = this.#random.below(2) === 0 ? names[this.#random.below(names.length)] : undefined;
    const { json } = await this.#ask(client, 201, "POST", "/v1/capsules", { template, memory_mb: 256 });
    const files = new Map(template === undefined ? [] : this.#templates.get(template));
    this.#owned.set(json.id, { id: json.id, state: "running", files, template });
    // On a loaded machine the first start, which boots the template, takes minutes.
    let view = json;
    while (view.status === "starting") {
      ({ json: view } = await this.#ask(client, 200, "GET", `/v1/capsules/${json.id}?wait=running&timeout=120`));
    }
    assert.equal(view.status, "running", view.error_reason);
  }

  async #write(client: Client, { id, files }: Owned): Promise<void> {
    const path = `/root/file-${this.#serial++}`;
    const content = String(this.#random.next());
    const args = ["-c", `printf %s ${content} > ${path}`];
    await this.#ask(client, 200, "POST", `/v1/capsules/${id}/exec`, { cmd: "bash", args });
    files.set(path, content);
  }

  async #change(client: Client, capsule: Owned, verb: string, state: "running" | "paused"): Promise<void> {
    capsule.state = "unsure";
    await this.#ask(client, 200, "POST", `/v1/capsules/${capsule.id}/${verb}`);
    capsule.state = state;
  }

  async #destroy(client: Client, capsule: Owned): Promise<void> {
    capsule.state = "unsure";
    await this.#ask(client, 204, "DELETE", `/v1/capsules/${capsule.id}`);
    this.#forget(capsule);
  }

  async #capture(client: Client, capsule: Owned): Promise<void> {
    capsule.state = "unsure";
    const name = `${this.#name}-${this.#serial++}`;
    await this.#ask(client, 201, "POST", "/v1/snapshots", { sandbox_id: capsule.id, name });
    this.#templates.set(name, capsule.files);
    this.#forget(capsule);
  }

  #forget({ id }: Owned): void {
    this.#owned.delete(id);
    this.#gone.add(id);
  }

  async #ask(client: Client, status: number, method: string, path: string, json?: unknown): Promise<Reply> {
    const reply = await client.expect(status, method, path, json === undefined ? {} : { json });
    this.#steps++;
    this.#onStep();
    return reply;
  }

  /** Holds the service to all of it; leaves at most one paused capsule for the next cut. */
  async assertKept(client: Client): Promise<void> {
    const { json: views } = await client.expect(200, "GET", "/v1/capsules");
    const { json: templates } = await client.expect(200, "GET", "/v1/snapshots?type=snapshot");
    const statusOf = new Map<string, string>(
      views.map(({ id, status }: { id: string; status: string }) => [id, status]),
    );
    const names = templates.map(({ name }: { name: string }) => name);
    for (const id of this.#gone) assert.ok(!statusOf.has(id), `${id} is back after its DELETE`);
    for (const name of this.#templates.keys()) assert.ok(names.includes(name), `the template ${name} is lost`);
    for (const capsule of [...this.#owned.values()])
      await this.#assertCapsule(client, capsule, statusOf.get(capsule.id));
    for (const [name, files] of this.#templates) await this.#assertTemplate(client, name, files);
  }

  async #assertCapsule(client: Client, capsule: Owned, status: string | undefined): Promise<void> {
    const { id, state, files, template } = capsule;
    if (state !== "unsure") assert.ok(status !== undefined, `${id} is lost`);
    if (state === "paused") assert.equal(status, "paused", id);
    const same = client.known(id);
    if (status === "paused") {
      await same.resume();
      for (const [path, content] of files) assert.equal(await same.sh(`cat ${path}`), content, `${id} ${path}`);
      if (template === undefined && this.#random.below(2) === 0) {
        await same.pause();
        capsule.state = "paused";
        return;
      }
    }
    if (status !== undefined) await same.destroy();
    this.#forget(capsule);
  }

  /** A capsule made of it has its files. Then it goes, so that the next cut meets captures again. */
  async #assertTemplate(client: Client, name: string, files: Map<string, string>): Promise<void> {
    await using made = await client.capsule({ template: name });
    for (const [path, content] of files) assert.equal(await made.sh(`cat ${path}`), content, `${name} ${path}`);
    await made.destroy();
    await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
    this.#templates.delete(name);
  }
}

/** Not an answer. */
function isConnectionsEnd(error: unknown): boolean {
  return typeof (error as NodeJS.ErrnoException).code === "string" && !(error instanceof assert.AssertionError);
}
