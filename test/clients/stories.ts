/** Runs a client's script, looks at what its aborts left behind, and holds what it says against what is expected. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Client } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import type { ZooClient } from "./zoo.ts";

const deadlineMs = 900_000;

const invalidState = [409, "invalid_state"];

const expectations: Record<ZooClient["speaks"][number], Record<string, object>> = {
  http: {
    create: { status: 201 },
    wait: { status: 200, state: "running" },
    exec: { exit_code: 3, stdout: "out\n", stderr: "err\n" },
    binary: { encoding: "base64", bytes: "ff00fe" },
    "time-out": { status: 504, code: "timeout" },
    background: { status: 202 },
    processes: { listed: true },
    kill: { status: 204 },
    upload: { status: 204 },
    read: { status: 200, bytes: "0d0a2d2d6200ff" },
    list: { listed: true },
    "big up": { status: 204, whole: true },
    "big down": { status: 200, whole: true },
    "401": { answer: [401, "unauthorized"] },
    "404": { answer: [404, "not_found"] },
    "405": { answer: [405, "method_not_allowed"] },
    "400": { answer: [400, "invalid_request"] },
    "409": { answer: invalidState },
    refused: { lost: 0 },
    pause: { status: 200, state: "paused" },
    paused: { answer: invalidState },
    "refused upload": { status: 409 },
    resume: { status: 200, state: "running" },
    snapshot: { status: 201 },
    "delete snapshot": { status: 204 },
    gone: { answer: [404, "not_found"] },
  },
  sockets: {
    stream: { first: "start", exit_code: 137 },
    terminal: { same: true, last: "exit" },
  },
};

export interface Story {
  /** To look at what is left behind. */
  client: Client;
  /** The service's, or a proxy's in front of it. */
  url: string;
  /** To be sent up and down, and its SHA-256. */
  file: { path: string; sha256: string };
  /** To be sent where it is refused. */
  refusedFile: string;
  /** A proxy in front does not pass on that a client hung up, so an aborted command runs to its end. */
  hidesAborts?: boolean;
  /** How many times each kind of refusal is tried. */
  tries: number;
}

export async function tell({ name, command, speaks, differs }: ZooClient, story: Story): Promise<void> {
  const { client, url, file } = story;
  const folder = await mkdtemp(join(tmpdir(), "capsule-client-"));
  const child = spawn(command[0], command.slice(1), {
    env: {
      ...process.env,
      CAPSULE_URL: url,
      CAPSULE_API_KEY: client.key,
      CLIENT_FOLDER: folder,
      CLIENT_FILE: file.path,
      CLIENT_REFUSED: story.refusedFile,
      CLIENT_TRIES: String(story.tries),
      CLIENT_NAME: `${name.toLowerCase().replace(/[^a-z0-9]+/g, "-")}-${Date.now()}`,
    },
    stdio: ["pipe", "pipe", "pipe"],
    timeout: deadlineMs,
    killSignal: "SIGKILL",
  });
  try {
    const complaints = text(child.stderr);
    const exit = new Promise((resolve) => child.once("close", resolve));
    const steps: Record<string, object> = {};
    for await (const line of createInterface({ input: child.stdout })) {
      const { step, ...said } = JSON.parse(line);
      if (step !== "aborted") steps[step] = said;
      else {
        const isAboutFiles = speaks.includes("http") && steps.terminal === undefined;
        if (!(isAboutFiles && story.hidesAborts)) await noProcessIsLeftOf(client, said.id);
        if (isAboutFiles) await noHalfIsLeftOf(client, said.id, file);
        child.stdin.write("\n");
      }
    }
    const code = await exit;
    assert.deepEqual(steps, Object.assign({}, ...speaks.map((each) => expectations[each]), differs), await complaints);
    assert.equal(code, 0, await complaints);
  } finally {
    child.kill("SIGKILL");
    await rm(folder, { recursive: true });
  }
}

async function noProcessIsLeftOf(client: Client, id: string): Promise<void> {
  const at = `/v1/capsules/${id}`;
  await eventually("no process of an aborted command", async () => {
    const { processes } = (await client.expect(200, "GET", `${at}/processes`)).json;
    return !processes.some(({ cmd, args }: { cmd: string; args: string[] }) =>
      [cmd, ...args].join(" ").includes("sleep 30"),
    );
  });
}

/** Of an aborted upload, whose target is as it was. */
async function noHalfIsLeftOf(client: Client, id: string, file: Story["file"]): Promise<void> {
  const at = `/v1/capsules/${id}`;
  await eventually("no half of an aborted upload", async () => {
    const { entries } = (await client.expect(200, "POST", `${at}/files/list`, { json: { path: "/root" } })).json;
    return !entries.some((entry: { name: string }) => entry.name.startsWith(".capsule-"));
  });
  const json = { cmd: "sha256sum", args: ["/root/big"], timeout: 0 };
  const { stdout } = (await client.expect(200, "POST", `${at}/exec`, { json })).json;
  assert.equal(stdout.split(" ")[0], file.sha256, "an aborted upload changed the file it was to replace");
}

async function text(stream: AsyncIterable<Buffer>): Promise<string> {
  let all = "";
  for await (const chunk of stream) all = (all + chunk).slice(-4_000);
  return all;
}
