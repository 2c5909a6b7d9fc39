/** Changes of capsules that clients break off half-way: each is made whole or not at all, and what it concerned goes on. */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface, type Interface } from "node:readline";
import { type Client, TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { type KnownClient, knownClients, python } from "./known-clients.ts";

const here = (path: string) => join(import.meta.dirname, path);
const clientNamed = (name: string) => knownClients.find((each) => each.name === name)!;

export interface Aborter extends Pick<KnownClient, "name" | "command" | "probe" | "package" | "isUsual"> {}

/** Programs that send what they are told and break it off after so many milliseconds. */
export const aborters: Aborter[] = [
  { ...clientNamed("curl"), command: ["bash", here("shell/abort.sh")] },
  { ...clientNamed("ws"), name: "Node's sockets", command: [process.execPath, here("node/abort.ts")] },
  { ...clientNamed("Python requests"), command: [python, here("python/abort.py")] },
  { ...clientNamed("Go net/http"), command: ["go", "run", here("go/abort/main.go")] },
];

/** Before the service has begun, while it works, and when it may be done. */
const afterMs = [5, 40, 250];

export class RunningAborter implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly #answers: AsyncIterator<string>;
  readonly #lines: Interface;

  constructor({ command }: Aborter, url: string, key: string) {
    const env = { ...process.env, CAPSULE_URL: url, CAPSULE_API_KEY: key };
    this.#process = spawn(command[0], command.slice(1), { env, stdio: ["pipe", "pipe", "inherit"] });
    this.#lines = createInterface({ input: this.#process.stdout! });
    this.#answers = this.#lines[Symbol.asyncIterator]();
  }

  /** Resolves when it is broken off, with the status of an answer that came before, or 0. */
  async abort(method: string, path: string, ms: number, body?: object): Promise<number> {
    this.#process.stdin!.write(`${method} ${path} ${ms} ${body === undefined ? "" : JSON.stringify(body)}\n`);
    const { value, done } = await this.#answers.next();
    assert.ok(!done, "the client ended");
    return Number(value);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#lines.close();
    const gone = once(this.#process, "exit");
    this.#process.stdin!.end();
    await gone;
  }
}

/** `client` is alone in its team. Throws when something is left half done, or behind. */
export async function abortChanges(aborter: RunningAborter, client: Client): Promise<void> {
  for (const ms of afterMs) await aborter.abort("POST", "/v1/capsules", ms, { memory_mb: 256 });
  const ids: string[] = [];
  for (const ms of afterMs) {
    const { id } = (await client.expect(201, "POST", "/v1/capsules", { json: { memory_mb: 256 } })).json;
    ids.push(id);
    const capsule = new TestCapsule(client, id);
    await aborter.abort("GET", `${capsule.path}?wait=running&timeout=120`, ms);
    await capsule.until("running");
    await capsule.sh("echo kept > /root/note");
    const json = { cmd: "sleep", args: ["1000000"], background: true };
    const { tag } = (await client.expect(202, "POST", `${capsule.path}/exec`, { json })).json;
    await aborter.abort("POST", `${capsule.path}/pause`, ms);
    await goesOn(capsule, tag);
    await capsule.pause();
    await aborter.abort("POST", `${capsule.path}/resume`, ms);
    await goesOn(capsule, tag);
    await abortSnapshot(aborter, capsule, ms);
  }
  ids.push(...(await takeMade(client)));
  await waitFor("no process of them is left", async () => !ids.some(hasProcess));
}

/** Each aborted create has made a capsule that runs, or none. Resolves with their ids when they are removed. */
async function takeMade(client: Client): Promise<string[]> {
  await haveArrived(client);
  const { json } = await client.expect(200, "GET", "/v1/capsules");
  assert.ok(json.length <= afterMs.length, `${json.length} capsules of ${afterMs.length} creates`);
  for (const { id } of json) {
    const capsule = new TestCapsule(client, id);
    await capsule.until("running");
    assert.equal(await capsule.sh("echo works"), "works");
    await capsule.destroy();
  }
  return json.map(({ id }: { id: string }) => id);
}

/** Paused or not, it is brought back to `running`, with its file and its process. */
async function goesOn(capsule: TestCapsule, tag: string): Promise<void> {
  await haveArrived(capsule.client);
  const { note, processes } = await waitFor("the capsule goes on", async () => {
    const { status } = await capsule.view();
    assert.notEqual(status, "error");
    if (status === "paused") await capsule.client.call("POST", `${capsule.path}/resume`);
    const { json } = await capsule.exec({ cmd: "cat", args: ["/root/note"] });
    const listed = await capsule.client.call("GET", `${capsule.path}/processes`);
    return (
      json.stdout !== undefined && listed.status === 200 && { note: json.stdout, processes: listed.json.processes }
    );
  });
  assert.equal(note, "kept\n");
  assert.deepEqual(
    processes.slice(1).map((each: { tag: string }) => each.tag), // without the guest's first process
    [tag],
  );
}

/** The service accepts connections in turn, so it knows of all requests that were aborted before when it answers on a new one. */
async function haveArrived(client: Client): Promise<void> {
  const other = client.as(client.key);
  await other.expect(200, "GET", "/healthz");
  other.close();
}

/** The template is whole and the capsule gone, or there is no template and the capsule goes on. */
async function abortSnapshot(aborter: RunningAborter, capsule: TestCapsule, ms: number): Promise<void> {
  const { client } = capsule;
  const name = `aborted-${capsule.id.toLowerCase()}`;
  await aborter.abort("POST", "/v1/snapshots", ms, { sandbox_id: capsule.id, name });
  await haveArrived(client);
  const left = await waitFor("the snapshot is whole or none", async () => {
    const { status } = await client.call("GET", capsule.path);
    const { json } = await client.expect(200, "GET", "/v1/snapshots?type=snapshot");
    const hasTemplate = json.some((each: { name: string }) => each.name === name);
    if (status === 404) return hasTemplate && "template";
    if (hasTemplate) return false;
    return (await capsule.exec({ cmd: "true" })).status === 200 && "capsule";
  });
  if (left === "capsule") return capsule.destroy();
  const copy = await client.capsule({ template: name });
  assert.equal(await copy.sh("cat /root/note"), "kept");
  await copy.destroy();
  await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
}

function hasProcess(id: string): boolean {
  return readdirSync("/proc")
    .filter((each) => /^\d+$/.test(each))
    .some((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(id);
      } catch {
        return false; // it has just ended
      }
    });
}
