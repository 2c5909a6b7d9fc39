/** One team that calls the API at random and abandons some calls. Every answer must be right or an expected error. */
import assert from "node:assert/strict";
import { setTimeout as delay } from "node:timers/promises";
import type { Call, Client, Reply } from "../client.ts";
import type { Random } from "../conformance/random.ts";
import { TestSocket } from "../conformance/socket.ts";
import { type Forgery, forgeryCommand, forgeryForm } from "../faults/forged-frames.ts";
import type { World } from "../faults/world.ts";

const maxCapsules = 3;
const answerMs = 25_000;
const maxTalkMs = 3_000;
/** A lost VM or agent makes its capsule `error` within this time. */
const noticedSec = 10;
const garbles: Forgery[] = ["nonsense", "huge_frame", "answer_to_unopened_stream", "repeated_halt"];
/** Statuses that are right while VMs and the daemon are killed. */
const expected = new Set([200, 201, 202, 204, 400, 404, 409, 429, 502, 503, 504]);

export class SoakPlayer {
  readonly name: string;
  readonly key: string;
  readonly #world: World;
  readonly #random: Random;
  /** The daemon's client that `#client` was made from. */
  #of: Client | undefined;
  #client: Client | undefined;
  /** Numbers of answers by status. */
  readonly statuses: Map<number, number>;
  /** Agents' ports taken over by a forging program. */
  forgeries = 0;
  /** How many conversations of each kind of socket came to their end. */
  readonly conversations = new Map<string, number>();
  /** Requests without an answer in 25 s while the daemon lived. */
  unanswered = 0;

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
    if (chosen === undefined || (views.length < maxCapsules && this.#random.below(5) === 0)) await this.#create();
    else if (chosen.status === "error" || chosen.status === "stopped") await this.#destroy(chosen.id);
    else await this.#use(chosen);
  }

  /** Destroys all capsules and templates of the team and closes its client. */
  async leave(): Promise<void> {
    const client = this.#current();
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
      if (resumed?.status === 502) await this.#destroy(id); // its agent does not answer any more
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

  /** Root in the guest sends invalid frames on the agent's port. Only this capsule may fail. */
  async #garble(path: string): Promise<void> {
    const forgery = garbles[this.#random.below(garbles.length)]!;
    if ((await this.#ask("POST", `${path}/files/write`, { form: forgeryForm }))?.status !== 204) return;
    if ((await this.#ask("POST", `${path}/exec`, { json: forgeryCommand(forgery) }))?.status !== 202) return;
    this.forgeries++;
    await this.#ask("POST", `${path}/exec`, { json: { cmd: "true", timeout: 5 } });
  }

  /** Aborted at a random moment. */
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

  /** Drops the socket after a random time, also in the middle of the conversation. */
  async #talk(id: string, suffix: string, talk: (socket: TestSocket) => Promise<void>): Promise<void> {
    const life = this.#world.server.pid;
    try {
      await using socket = await TestSocket.open(this.#current().known(id), suffix);
      const timer = new AbortController();
      const dropped = delay(this.#random.below(maxTalkMs), undefined, { signal: timer.signal });
      const finished = talk(socket).then(() => {
        this.conversations.set(suffix, (this.conversations.get(suffix) ?? 0) + 1);
      });
      await Promise.race([finished, dropped]).finally(() => timer.abort());
    } catch (error) {
      if (!(await this.#isExcused(id, life, error))) throw error;
    }
  }

  /** True when the daemon or the capsule has ended, or the server refused the upgrade with an expected status. */
  async #isExcused(id: string, life: number | undefined, error: unknown): Promise<boolean> {
    const refusal = /^Unexpected server response: (\d+)$/.exec(error instanceof Error ? error.message : "")?.[1];
    if (refusal !== undefined) return expected.has(Number(refusal));
    const view = await this.#ask("GET", `/v1/capsules/${id}?wait=error&timeout=${noticedSec}`);
    const hasDaemonEnded = view === undefined || life !== this.#world.server.pid;
    return hasDaemonEnded || view.status !== 200 || view.json.status !== "running";
  }

  /** The answer; undefined when the daemon ended meanwhile or the call was aborted. */
  async #ask(method: string, path: string, call: Call = {}, abortMs = answerMs): Promise<Reply | undefined> {
    const signal = AbortSignal.timeout(abortMs);
    const reply = await this.#current()
      .call(method, path, { ...call, signal })
      .catch((error: NodeJS.ErrnoException) => {
        assert.ok(signal.aborted || typeof error.code === "string", String(error.stack));
        assert.notEqual(error.code, "ERR_ASSERTION", error.message);
        if (signal.aborted && abortMs === answerMs) this.unanswered++;
        return undefined;
      });
    if (reply === undefined) return undefined;
    this.statuses.set(reply.status, (this.statuses.get(reply.status) ?? 0) + 1);
    if (!expected.has(reply.status)) {
      assert.fail(`${method} ${path}: ${reply.status} ${reply.text}\n${this.#world.complaints()}`);
    }
    return reply;
  }

  /** A client of the running daemon, whose port changes at each restart. */
  #current(): Client {
    if (this.#of !== this.#world.client || this.#client === undefined) {
      this.#client?.close();
      this.#of = this.#world.client;
      this.#client = this.#of.as(this.key);
    }
    return this.#client;
  }
}
