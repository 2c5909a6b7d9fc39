/** One team at work: at random, what clients do, and leave half done. What is answered must be true, or an honest error. */
import assert from "node:assert/strict";
import { setTimeout as delay } from "node:timers/promises";
import type { Call, Client, Reply, TestCapsule } from "../client.ts";
import type { Random } from "../conformance/random.ts";
import { TestSocket } from "../conformance/socket.ts";
import { type Lie, liarCommand, liarForm } from "../faults/liar.ts";
import type { World } from "../faults/world.ts";

const mostCapsules = 3;
const patienceMs = 25_000;
const garbles: Lie[] = ["nonsense", "huge_frame", "answer_another_stream", "halt_again_and_again"];
/** What a client may hear while VMs are killed and the daemon dies. */
const honest = new Set([200, 201, 202, 204, 400, 404, 409, 429, 502, 503, 504]);

export class Player {
  readonly name: string;
  readonly key: string;
  readonly #world: World;
  readonly #random: Random;
  #of: Client | undefined;
  #client: Client | undefined;
  /** Of what was answered, by status. */
  readonly statuses: Map<number, number>;
  /** Channels garbled from inside. */
  lies = 0;

  constructor(world: World, name: string, key: string, random: Random, statuses: Map<number, number>) {
    this.#world = world;
    this.name = name;
    this.key = key;
    this.#random = random;
    this.statuses = statuses;
  }

  /** One step. */
  async act(): Promise<void> {
    const list = await this.#ask("GET", "/v1/capsules");
    if (list?.status !== 200) return;
    const views: { id: string; status: string }[] = list.json;
    const chosen = views[this.#random.below(views.length)];
    if (chosen === undefined || (views.length < mostCapsules && this.#random.below(5) === 0)) await this.#create();
    else if (chosen.status === "error" || chosen.status === "stopped") await this.#destroy(chosen.id);
    else await this.#use(chosen);
  }

  /** Nothing of the team's is left, and no connection of its client. */
  async leave(): Promise<void> {
    const client = this.#today();
    for (const { id } of (await client.expect(200, "GET", "/v1/capsules")).json) {
      await client.expect(204, "DELETE", `/v1/capsules/${id}`);
    }
    for (const { name } of (await client.expect(200, "GET", "/v1/snapshots?type=snapshot")).json) {
      await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
    }
    client.close();
    this.#of = undefined;
  }

  async #use({ id, status }: { id: string; status: string }): Promise<void> {
    const random = this.#random;
    const path = `/v1/capsules/${id}`;
    if (status === "paused") {
      const resumed = await this.#ask("POST", `${path}/resume`);
      if (resumed?.status === 502) await this.#destroy(id); // whose agent was silenced will never answer again
      return;
    }
    const acts = [
      () => this.#exec(path),
      () => this.#exec(path),
      () => this.#flood(path),
      () => this.#abandon(path),
      () => this.#background(path),
      () => this.#file(path),
      () => this.#file(path),
      () => this.#upload(path),
      () => this.#ask("POST", `${path}/files/list`, { json: { path: "/usr", depth: 2 } }),
      () => this.#stream(id),
      () => this.#terminal(id),
      () => this.#ask("POST", `${path}/pause`),
      () => this.#capture(id),
      () => this.#garble(path),
      () => this.#destroy(id),
    ];
    await acts[random.below(acts.length)]!();
  }

  async #create(): Promise<void> {
    const templates = await this.#ask("GET", "/v1/snapshots?type=snapshot");
    const names = (templates?.status === 200 ? templates.json : []).map(({ name }: { name: string }) => name);
    const template = names[this.#random.below(2 * names.length + 1)];
    const made = await this.#ask("POST", "/v1/capsules", { json: { template } });
    if (made?.status === 201) await this.#ask("GET", `/v1/capsules/${made.json.id}?wait=running&timeout=20`);
  }

  async #destroy(id: string): Promise<void> {
    await this.#ask("DELETE", `/v1/capsules/${id}`);
  }

  async #capture(id: string): Promise<void> {
    const name = `made-${this.#random.below(2)}`;
    if (this.#random.below(3) === 0) await this.#ask("DELETE", `/v1/snapshots/${name}`);
    else await this.#ask("POST", "/v1/snapshots?overwrite=true", { json: { sandbox_id: id, name } });
  }

  async #exec(path: string): Promise<void> {
    const said = String(this.#random.next());
    const reply = await this.#ask("POST", `${path}/exec`, { json: { cmd: "echo", args: [said], timeout: 5 } });
    if (reply?.status === 200) assert.equal(reply.json.stdout, `${said}\n`, `${path}: ${reply.text}`);
  }

  async #flood(path: string): Promise<void> {
    const bytes = 1 + this.#random.size(3_000_000);
    const json = { cmd: "head", args: ["-c", String(bytes), "/dev/zero"], timeout: 10 };
    const reply = await this.#ask("POST", `${path}/exec`, { json });
    if (reply?.status === 200) assert.equal(reply.json.stdout.length, bytes, path);
  }

  async #abandon(path: string): Promise<void> {
    const json = { cmd: "sh", args: ["-c", "yes | head -c 50000000; sleep 100"], timeout: 0 };
    await this.#ask("POST", `${path}/exec`, { json }, this.#random.below(400));
  }

  async #background(path: string): Promise<void> {
    const json = { cmd: "sleep", args: ["1000"], background: true };
    const started = await this.#ask("POST", `${path}/exec`, { json });
    if (started?.status === 202) await this.#ask("DELETE", `${path}/processes/${started.json.tag}`);
  }

  async #file(path: string): Promise<void> {
    const content = this.#random.bytes(1 + this.#random.size(60_000));
    const file = `/root/${this.name}-${this.#random.below(5)}`;
    const form: Call["form"] = [
      ["path", file],
      ["file", content],
    ];
    if ((await this.#ask("POST", `${path}/files/write`, { form }))?.status !== 204) return;
    const read = await this.#ask("POST", `${path}/files/read`, { json: { path: file } });
    if (read?.status === 200) assert.ok(read.bytes.equals(content), `${path}: ${file} is not what was written`);
  }

  /** Root inside says something else on the agent's channel: the capsule is lost by it, and nothing else. */
  async #garble(path: string): Promise<void> {
    const lie = garbles[this.#random.below(garbles.length)]!;
    if ((await this.#ask("POST", `${path}/files/write`, { form: liarForm }))?.status !== 204) return;
    if ((await this.#ask("POST", `${path}/exec`, { json: liarCommand(lie) }))?.status !== 202) return;
    this.lies++;
    await this.#ask("POST", `${path}/exec`, { json: { cmd: "true", timeout: 5 } });
  }

  /** Cut off somewhere. */
  async #upload(path: string): Promise<void> {
    const form: Call["form"] = [
      ["path", "/root/cut"],
      ["file", Buffer.alloc(8_000_000, "x")],
    ];
    await this.#ask("POST", `${path}/files/stream/write`, { form }, this.#random.below(100));
  }

  async #stream(id: string): Promise<void> {
    await this.#talk(id, "exec/stream", async (socket) => {
      socket.say({ type: "start", cmd: "sh", args: ["-c", "echo hello; yes"] });
      await socket.next("start");
      if (this.#random.below(2) === 0) socket.say({ type: "stop" });
    });
  }

  async #terminal(id: string): Promise<void> {
    await this.#talk(id, "pty", async (socket) => {
      socket.say({ type: "start" });
      await socket.next("started");
      socket.type("echo $((6*7))\n");
      await socket.prints(/42\r\n/);
      socket.say({ type: "kill" });
    });
  }

  /** The socket is dropped afterwards, wherever the conversation was. */
  async #talk(id: string, suffix: string, talk: (socket: TestSocket) => Promise<void>): Promise<void> {
    const capsule: TestCapsule = this.#today().known(id);
    const life = this.#world.server.pid;
    try {
      await using socket = await TestSocket.open(capsule, suffix);
      const over = new AbortController();
      const { signal } = over;
      await Promise.race([talk(socket), delay(this.#random.below(3_000), undefined, { signal })]).finally(() =>
        over.abort(),
      );
    } catch (error) {
      // The capsule was paused, killed or destroyed meanwhile, or the daemon was.
      assert.ok(error instanceof Error && !/internal_error|answered 500|\b500\b/.test(error.message), String(error));
      if (life !== this.#world.server.pid) return;
    }
  }

  /** The answer; undefined when the daemon died over it, or the client lost its patience. */
  async #ask(method: string, path: string, call: Call = {}, abortMs = patienceMs): Promise<Reply | undefined> {
    const signal = AbortSignal.timeout(abortMs);
    const reply = await this.#today()
      .call(method, path, { ...call, signal })
      .catch((error: NodeJS.ErrnoException) => {
        assert.ok(signal.aborted || typeof error.code === "string", String(error.stack));
        assert.notEqual(error.code, "ERR_ASSERTION", error.message);
        return undefined;
      });
    if (reply === undefined) return undefined;
    this.statuses.set(reply.status, (this.statuses.get(reply.status) ?? 0) + 1);
    if (!honest.has(reply.status)) {
      assert.fail(`${method} ${path}: ${reply.status} ${reply.text}\n${this.#world.complaints()}`);
    }
    return reply;
  }

  /** The daemon listens elsewhere after each of its deaths. */
  #today(): Client {
    if (this.#of !== this.#world.client || this.#client === undefined) {
      this.#client?.close();
      this.#of = this.#world.client;
      this.#client = this.#of.as(this.key);
    }
    return this.#client;
  }
}
