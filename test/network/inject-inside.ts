/** An API on this machine's port 443, a server that lets capsules reach it, and a search for the key in everything that they leave. */
import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:https";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { Client } from "../../src/sdk/sdk.ts";
import { TestAuthority } from "../relay/certificates.ts";
import { Server } from "../server.ts";

const host = "host.capsule.internal";
const secret = `s3cret-${crypto.randomUUID()}`;
const repository = join(import.meta.dirname, "../..");
const example = join(repository, "examples/api-without-key.ts");
const sdk = join(repository, "src/sdk/sdk.ts");

/** The program of the guide, for the API of the test. */
function guideProgram(): string {
  const guide = readFileSync(join(repository, "docs/guides/network.md"), "utf8");
  const [, code = ""] = /^```ts no-run\n(.*?)^```$/ms.exec(guide) ?? [];
  return code.replaceAll("api.openai.com", host).replace('"capsule-sdk"', JSON.stringify(sdk));
}

/** Arguments and variables of all processes but this one. */
function processTexts(): string[] {
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid);
  return pids.flatMap((pid) =>
    ["cmdline", "environ"].map((file) => {
      try {
        return readFileSync(`/proc/${pid}/${file}`, "latin1");
      } catch {
        return ""; // it has just ended
      }
    }),
  );
}

test("a capsule calls an API whose key is nowhere in it", { timeout: 900_000 }, async () => {
  execFileSync("ip", ["link", "set", "lo", "up"]);
  using authority = new TestAuthority();
  const seen: (string | undefined)[] = [];
  const api = createServer(authority.sign(host), (request, response) => {
    seen.push(request.headers.authorization);
    response.end("models: one, two");
  });
  await once(api.listen(443, "127.0.0.1"), "listening");
  using _api = { [Symbol.dispose]: () => void api.close().closeAllConnections() };
  const env = { CAPSULE_EGRESS_GRANT: "host:80,host:443", NODE_EXTRA_CA_CERTS: authority.path };
  await using server = await Server.start({ env });
  const client = new Client({ url: server.url, apiKey: server.apiKey });

  const service = { CAPSULE_URL: server.url, CAPSULE_API_KEY: server.apiKey };
  const asked = { API_URL: `https://${host}/v1/models`, API_KEY: secret };
  const ran = outputOf(example, { ...service, ...asked });
  assert.match(await ran, /^200 models: one, two\n\nthe capsule does not have the key\n$/);
  assert.deepEqual(seen.splice(0), [`Bearer ${secret}`]);
  const program = join(dirname(server.dataDir), "agent.mts");
  writeFileSync(program, guideProgram());
  assert.equal(await outputOf(program, { ...service, OPENAI_API_KEY: secret }), "models: one, two\n");
  assert.deepEqual(seen.splice(0), [`Bearer ${secret}`]);

  const capsule = await client.create({
    network: { egress: "allowlist", allow: [host], inject: [{ host, headers: { Authorization: secret } }] },
  });
  const { stdout } = await capsule.exec("curl", ["-s", `http://${host}/v1`], { timeoutSec: 600 });
  assert.equal(stdout, "models: one, two");
  assert.deepEqual(seen.splice(0), [secret]);
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  assert.equal(metrics.includes(secret), false);
  for (const text of processTexts()) assert.equal(text.includes(secret), false, "a process shows it");

  await capsule.pause();
  const filesWith = (input: string) =>
    spawnSync("grep", ["-rlasF", "-D", "skip", "-f", "-", dirname(server.dataDir)], { input, encoding: "utf8" }).stdout;
  assert.notEqual(filesWith(capsule.id), "", "the search finds what is there");
  assert.equal(filesWith(secret), "", "no file of the data folder has it, and so no checkpoint and no log");
  await capsule.resume();
  const again = await capsule.exec("curl", ["-s", `http://${host}/v1`], { timeoutSec: 600 });
  assert.equal(again.stdout, "models: one, two");
  assert.deepEqual(seen.splice(0), [secret]);
  const places = "/root /home /etc /run /tmp /var /proc/[0-9]*/environ /proc/[0-9]*/cmdline";
  const search = await capsule.exec("sh", ["-c", `grep -rlasF -f - ${places}`], { stdin: secret });
  assert.deepEqual([search.stdout, search.exitCode === 0], ["", false], "no file and no process of the guest has it");
  await capsule.destroy();
});

/** Standard output of the program, which must end well. */
async function outputOf(program: string, env: Record<string, string>): Promise<string> {
  const child = spawn(process.execPath, [program], {
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  let output = "";
  child.stdout.on("data", (chunk: Buffer) => {
    output += chunk;
  });
  const [code] = (await once(child, "close")) as [number];
  assert.equal(code, 0, output);
  return output;
}
