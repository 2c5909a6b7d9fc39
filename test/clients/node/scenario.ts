/** The scenario of each of Node's clients, one JSON line a step; suite.test.ts starts it and judges. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createReadStream, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";

export const {
  CAPSULE_URL: url = "",
  CAPSULE_API_KEY: apiKey = "",
  CLIENT_FOLDER: folder = "",
  CLIENT_FILE: bigFile = "",
  CLIENT_REFUSED: refusedFile = "",
  CLIENT_NAME: name = "",
} = process.env;
const tries = Number(process.env.CLIENT_TRIES);

export interface Answer {
  status: number;
  bytes: Buffer;
}

/** Each as its library is used. */
export interface HttpClient {
  send(method: string, path: string, json?: unknown, key?: string): Promise<Answer>;
  /** As text/plain. */
  sendText(path: string, text: string): Promise<Answer>;
  upload(path: string, target: string, file: string, isFileFirst?: boolean): Promise<number>;
  download(path: string, target: string, file: string): Promise<number>;
  abortExec(path: string, body: object): Promise<void>;
  abortUpload(path: string, target: string): Promise<void>;
  abortDownload(path: string, target: string): Promise<void>;
}

export function say(step: string, values: object): void {
  console.log(JSON.stringify({ step, ...values }));
}

/** The suite looks at what is left behind, and says when it has. */
export async function sayAborted(of: "requests" | "socket" | "terminal", id: string): Promise<void> {
  say("aborted", { of, id });
  await once(process.stdin.resume(), "data");
  process.stdin.pause(); // or it keeps the process
}

async function sha256(file: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(file), hash);
  return hash.digest("hex");
}

export async function httpScenario(client: HttpClient): Promise<void> {
  // biome-ignore lint/suspicious/noExplicitAny: a scenario reads whatever it expects to be there
  const call = async (method: string, path: string, json?: unknown, key?: string): Promise<[number, any]> => {
    const { status, bytes } = await client.send(method, path, json, key);
    return [status, bytes.length === 0 ? null : JSON.parse(bytes.toString())];
  };
  const code = async (...request: Parameters<typeof call>) => {
    const [status, answer] = await call(...request);
    return [status, answer?.error?.code ?? null];
  };

  const [created, capsule] = await call("POST", "/v1/capsules", { memory_mb: 256 });
  say("create", { status: created });
  const at = `/v1/capsules/${capsule.id}`;
  const [waited, running] = await call("GET", `${at}?wait=running&timeout=120`);
  say("wait", { status: waited, state: running.status });

  const exec = (cmd: string, args: string[], more: object = {}) => call("POST", `${at}/exec`, { cmd, args, ...more });
  const [, ran] = await exec("sh", ["-c", "echo out; echo err >&2; exit 3"]);
  say("exec", { exit_code: ran.exit_code, stdout: ran.stdout, stderr: ran.stderr });
  const [, binary] = await exec("printf", ["\\377\\000\\376"]);
  say("binary", { encoding: binary.encoding, bytes: Buffer.from(binary.stdout, "base64").toString("hex") });
  const [late, refusal] = await exec("sleep", ["300"], { timeout: 1 });
  say("time-out", { status: late, code: refusal.error.code });

  const [begun, { tag }] = await exec("sleep", ["301"], { background: true });
  say("background", { status: begun });
  const [, { processes }] = await call("GET", `${at}/processes`);
  say("processes", { listed: processes.some((each: { tag: string }) => each.tag === tag) });
  const [killed] = await call("DELETE", `${at}/processes/${tag}?signal=SIGTERM`);
  say("kill", { status: killed });

  const small = join(folder, 'small "ü".txt');
  writeFileSync(small, Buffer.from("\r\n--b\0\xff", "latin1"));
  say("upload", { status: await client.upload(`${at}/files/write`, "/root/ü ñ.txt", small) });
  const read = await client.send("POST", `${at}/files/read`, { path: "/root/ü ñ.txt" });
  say("read", { status: read.status, bytes: read.bytes.toString("hex") });
  const [, { entries }] = await call("POST", `${at}/files/list`, { path: "/root" });
  say("list", { listed: entries.some((entry: { name: string }) => entry.name === "ü ñ.txt") });
  const second = await client.upload(`${at}/files/write`, "/root/second", small, true);
  const reread = await client.send("POST", `${at}/files/read`, { path: "/root/second" });
  say("file first", { status: second, bytes: reread.bytes.toString("hex") });

  const hash = await sha256(bigFile);
  const up = await client.upload(`${at}/files/stream/write`, "/root/big", bigFile);
  const [, sum] = await exec("sha256sum", ["/root/big"], { timeout: 0 });
  say("big up", { status: up, whole: sum.stdout.split(" ")[0] === hash });
  const copy = join(folder, "copy");
  const down = await client.download(`${at}/files/stream/read`, "/root/big", copy);
  say("big down", { status: down, whole: (await sha256(copy)) === hash });

  // Each is under way when it is broken off, after 5 s where the library has a time-out.
  await client.abortExec(`${at}/exec`, { cmd: "sleep", args: ["302"], timeout: 0 });
  await client.abortUpload(`${at}/files/stream/write`, "/root/big");
  await client.abortDownload(`${at}/files/stream/read`, "/root/big");
  await sayAborted("requests", capsule.id);

  const wrong = "capk_wrong";
  say("401", { answer: await code("GET", at, undefined, wrong) });
  say("404", { answer: await code("GET", "/v1/capsules/cl-none") });
  say("405", { answer: await code("PUT", at) });
  say("400", { answer: await code("POST", `${at}/exec`, { cmd: 7 }) });
  say("409", { answer: await code("POST", `${at}/resume`) });
  const huge = { cmd: "x".repeat(20 << 20) };
  say("413", { answer: await code("POST", `${at}/exec`, huge) });
  const untyped = await client.sendText(`${at}/exec`, '{"cmd":"true"}');
  say("415", { answer: [untyped.status, JSON.parse(untyped.bytes.toString()).error.code] });
  say("429", { answer: await code("POST", "/v1/capsules", { vcpus: 200 }) });
  let lost = 0;
  const expect = async (status: number, answer: Promise<number>) => {
    if ((await answer) !== status) lost += 1;
  };
  for (let count = 0; count < tries; count++) {
    await expect(
      413,
      client.send("POST", `${at}/exec`, huge).then(({ status }) => status),
    );
    await expect(
      401,
      client.send("POST", `${at}/exec`, huge, wrong).then(({ status }) => status),
    );
    await expect(
      404,
      client.send("POST", "/v1/nothing", huge).then(({ status }) => status),
    );
    await expect(404, client.upload("/v1/capsules/cl-none/files/write", "/root/f", refusedFile));
    await expect(404, client.upload("/v1/capsules/cl-none/files/stream/write", "/root/f", refusedFile));
  }
  say("refused", { lost });

  const [paused, pausedCapsule] = await call("POST", `${at}/pause`);
  say("pause", { status: paused, state: pausedCapsule.status });
  say("paused", { answer: await code("POST", `${at}/exec`, { cmd: "true" }) });
  say("refused upload", { status: await client.upload(`${at}/files/write`, "/root/f", refusedFile) });
  const [resumed, again] = await call("POST", `${at}/resume`);
  say("resume", { status: resumed, state: again.status });
  const template = `client-${name}`;
  say("snapshot", { status: (await call("POST", "/v1/snapshots", { sandbox_id: capsule.id, name: template }))[0] });
  say("delete snapshot", { status: (await call("DELETE", `/v1/snapshots/${template}`))[0] });
  say("gone", { answer: await code("GET", at) });
}
