/** Runs a client's script, looks at what its aborts left behind, and holds what it says against what is expected. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Client } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import type { KnownClient } from "./known-clients.ts";

const deadlineMs = 900_000;

const invalidState = [409, "invalid_state"];

const expectations: Record<KnownClient["speaks"][number], Record<string, object>> = {
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
    "file first": { status: 204, bytes: "0d0a2d2d6200ff" },
    "big up": { status: 204, whole: true },
    "big down": { status: 200, whole: true },
    "401": { answer: [401, "unauthorized"] },
    "404": { answer: [404, "not_found"] },
    "405": { answer: [405, "method_not_allowed"] },
    "400": { answer: [400, "invalid_request"] },
    "409": { answer: invalidState },
    "413": { answer: [413, "too_large"] },
    "415": { answer: [415, "unsupported_media_type"] },
    "429": { answer: [429, "quota_exceeded"] },
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

/** The requests that a client breaks off half-way in each scenario. */
const aborts: Record<KnownClient["speaks"][number], Aborted["of"][]> = {
  http: ["requests"],
  sockets: ["socket", "terminal"],
};

export interface Scenario {
  /** To look at what is left behind. */
  client: Client;
  /** The service's, or a proxy's in front of it. */
  url: string;
  /** To be sent up and down, and its SHA-256. */
  file: { path: string; sha256: string };
  /** To be sent where it is refused. */
  refusedFile: string;
  /** The service's. */
  logFile: string;
  /** A proxy in front may have taken the whole of a download that the client breaks off. */
  hasProxy?: boolean;
  /** A proxy in front does not pass on that a client hung up, so an aborted command runs to its end. */
  hidesAborts?: boolean;
  /** A proxy in front may reset a client that it has passed a refusal to, so the 413 may be lost: docs/CLIENTS.md says so. */
  losesRefusals?: boolean;
  /** How many times each kind of refusal is tried. */
  tries: number;
}

export async function runScenario({ name, command, speaks, differs }: KnownClient, scenario: Scenario): Promise<void> {
  const { client, url, file } = scenario;
  const folder = await mkdtemp(join(tmpdir(), "capsule-client-"));
  const child = spawn(command[0], command.slice(1), {
    env: {
      ...process.env,
      CAPSULE_URL: url,
      CAPSULE_API_KEY: client.key,
      CLIENT_FOLDER: folder,
      CLIENT_FILE: file.path,
      CLIENT_REFUSED: scenario.refusedFile,
      CLIENT_TRIES: String(scenario.tries),
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
    const aborted: string[] = [];
    for await (const line of createInterface({ input: child.stdout })) {
      const { step, ...said } = JSON.parse(line);
      if (step !== "aborted") steps[step] = said;
      else {
        aborted.push(said.of);
        await nothingIsLeftOf(said, scenario);
        child.stdin.write("\n");
      }
    }
    const code = await exit;
    const expected: typeof steps = Object.assign({}, ...speaks.map((each) => expectations[each]), differs);
    if (scenario.losesRefusals && steps["413"] === undefined) delete expected["413"];
    assert.deepEqual(steps, expected, await complaints);
    assert.equal(code, 0, await complaints);
    assert.deepEqual(aborted.sort(), speaks.flatMap((each) => aborts[each]).sort(), "what was aborted");
  } finally {
    child.kill("SIGKILL");
    await rm(folder, { recursive: true });
  }
}

interface Aborted {
  of: "requests" | "socket" | "terminal";
  id: string;
}

async function nothingIsLeftOf(
  { of, id }: Aborted,
  { client, file, logFile, hidesAborts = false, hasProxy = false }: Scenario,
): Promise<void> {
  if (of === "terminal") return terminalGoesOn(client, id, logFile);
  if (of === "socket" || !hidesAborts) await noProcessIsLeftOf(client, id);
  if (of === "socket") return wasBrokenOff(id, logFile, "exec/stream");
  if (!hidesAborts) await wereAborted(client, id, hasProxy);
  await noHalfIsLeftOf(client, id, file);
}

async function noProcessIsLeftOf(client: Client, id: string): Promise<void> {
  const at = `/v1/capsules/${id}`;
  await waitFor("no process of an aborted command", async () => {
    const { processes } = (await client.expect(200, "GET", `${at}/processes`)).json;
    return !processes.some(({ cmd, args }: { cmd: string; args: string[] }) =>
      [cmd, ...args].join(" ").includes("sleep 30"),
    );
  });
}

/** How many sockets of a scenario end by themselves before one is aborted. */
const clean = { "exec/stream": 1, pty: 2 };

/** A session is there to be joined again; it ends when it is told to, and nothing is left of it then. */
async function terminalGoesOn(client: Client, id: string, logFile: string): Promise<void> {
  await wasBrokenOff(id, logFile, "pty");
  const at = `/v1/capsules/${id}/processes`;
  const [, ...sessions] = (await client.expect(200, "GET", at)).json.processes; // without the guest's first process
  assert.deepEqual(
    sessions.map(({ cmd, args }: { cmd: string; args: string[] }) => [cmd, ...args].join(" ")),
    ["sleep 305"],
  );
  await client.expect(204, "DELETE", `${at}/${sessions[0].tag}`);
  await noProcessIsLeftOf(client, id);
}

/** Without a close frame, which a clean end has; the log says 1006 then, as RFC 6455 has it. */
async function wasBrokenOff(id: string, logFile: string, verb: "exec/stream" | "pty"): Promise<void> {
  await waitFor("the log has the end of the aborted socket", async () => {
    const lines = (await readFile(logFile, "utf8")).split("\n").slice(0, -1); // without one that is being written
    const ended = lines.filter((line) => line.includes("socket closed") && line.includes(`/${id}/${verb}`));
    if (ended.length < clean[verb] + 1) return false;
    assert.equal(JSON.parse(ended.at(-1)!).code, 1006, "how the aborted socket was closed");
    return true;
  });
}

/** As the audit log has it: the client went away before the answer's end, or sent a form without an end. */
async function wereAborted(client: Client, id: string, hasProxy: boolean): Promise<void> {
  const wanted = ["exec sleep", "file.write /root/big", ...(hasProxy ? [] : ["file.read /root/big"])];
  let missing: string[] = [];
  await waitFor("an entry for each aborted request", async () => {
    const { entries } = (await client.expect(200, "GET", `/v1/audit?limit=1000&capsule=${id}`)).json;
    const found = entries
      .filter(({ status }: { status: number }) => status === 499 || status === 400)
      .map(({ action, subject }: { action: string; subject: string }) => `${action} ${subject}`);
    missing = wanted.filter((each) => !found.includes(each));
    return missing.length === 0;
  }).catch((error) => assert.fail(`${error.message}: ${missing}`));
}

/** An aborted upload has left its target as it was; an aborted download no longer reads its file. */
async function noHalfIsLeftOf(client: Client, id: string, file: Scenario["file"]): Promise<void> {
  const at = `/v1/capsules/${id}`;
  const sh = async (script: string): Promise<string> => {
    const json = { cmd: "sh", args: ["-c", script], timeout: 0 };
    return (await client.expect(200, "POST", `${at}/exec`, { json })).json.stdout.trim();
  };
  await waitFor("no half of an aborted upload", async () => {
    const { entries } = (await client.expect(200, "POST", `${at}/files/list`, { json: { path: "/root" } })).json;
    return !entries.some((entry: { name: string }) => entry.name.startsWith(".capsule-"));
  });
  await waitFor("the aborted download reads no longer", async () => {
    return (await sh("ls -l /proc/1/fd | grep -c /root/big || true")) === "0";
  });
  const sum = (await sh("sha256sum /root/big")).split(" ")[0];
  assert.equal(sum, file.sha256, "an aborted upload changed the file it was to replace");
}

async function text(stream: AsyncIterable<Buffer>): Promise<string> {
  let all = "";
  for await (const chunk of stream) all = (all + chunk).slice(-4_000);
  return all;
}
