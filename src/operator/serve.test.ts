import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { type Finding, verdictOn } from "./doctor.ts";
import { placeOf, stopping, welcome } from "./serve.ts";

test("serve refuses an address that others can reach without TLS, in one clear sentence, and touches nothing", () => {
  const folder = mkdtempSync(join(tmpdir(), "serve-"));
  try {
    const { status, stderr } = spawnSync(process.execPath, [resolve(import.meta.dirname, "../main.ts"), "serve"], {
      env: { ...process.env, CAPSULE_HOST: "0.0.0.0", CAPSULE_DATA: join(folder, "data"), CAPSULE_PORT: "0" },
      encoding: "utf8",
      timeout: 120_000,
    });
    assert.equal(status, 1, stderr);
    assert.match(
      stderr,
      /^capsule serve: CAPSULE_HOST is 0\.0\.0\.0, .*CAPSULE_TLS_CERT.*CAPSULE_PLAIN_HTTP=anywhere\n$/,
    );
    assert.ok(!existsSync(join(folder, "data")));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("this Node knows the V8 flag that serve sets", () => {
  const { stdout } = spawnSync(process.execPath, ["--v8-options"], { encoding: "utf8" });
  assert.ok(stdout.includes("  --semi-space-growth-factor ("));
});

const denied = { wanted: "auto", device: { mode: 0o20600, gid: 0 }, hasVirtualization: true, isRoot: true } as const;

test("the banner has a line for what is slow and for what the jail lacks, and none with KVM and all walls", () => {
  const jail = { mode: "full", missing: ["control groups v2 (boot with them)"] };
  const said = (accelerator: string, missing: string[]) =>
    welcome({
      url: "http://127.0.0.1:8080",
      newKey: undefined,
      engine: { accelerator, accelerator_reason: "", jail: { ...jail, missing } },
      dataDir: "/data",
      seconds: "1.0",
      kvm: denied,
      place: { command: "capsule", dataDir: "/data" },
    });
  const slow = said("tcg", jail.missing).split("\n");
  assert.match(slow[0]!, /after 1\.0 s, with software emulation$/);
  assert.match(slow[1]!, /^capsule: slow: KVM is not used: the users of the VMs may not open .*; sudo groupadd .*$/);
  assert.equal(slow[2], "capsule: warning: VMs run without control groups v2 (boot with them)");
  assert.doesNotMatch(said("kvm", []), /slow|warning/);
});

const tree = "/opt/capsule";
const started = { tree, installedData: undefined, cwd: tree, pid: 77, env: {} };

/** The lines of the banner that its reader enters. */
function commandsIn(place: { command: string; dataDir: string }, dataDir: string): string[] {
  const engine = { accelerator: "kvm", accelerator_reason: "", jail: { mode: "full", missing: [] } };
  const text = welcome({ url: "http://x", newKey: undefined, engine, dataDir, seconds: "1.0", kvm: denied, place });
  return text.split("\n").filter((line) => line.startsWith("  "));
}

test("the banner has the command as its reader enters it: in the repository, elsewhere, and of an installed release", () => {
  const here = placeOf(started);
  assert.equal(commandsIn(here, "/opt/capsule/.capsule")[0], "  ID=$(./capsule create)");
  assert.deepEqual(commandsIn(here, "/data").slice(0, 2), ["  export CAPSULE_DATA=/data", "  ID=$(./capsule create)"]);
  const elsewhere = placeOf({ ...started, cwd: "/root" });
  assert.equal(commandsIn(elsewhere, "/opt/capsule/.capsule")[0], "  ID=$(/opt/capsule/capsule create)");
  const installed = placeOf({ ...started, installedData: "/var/lib/capsule" });
  assert.equal(commandsIn(installed, "/var/lib/capsule")[0], "  ID=$(capsule create)");
  assert.equal(commandsIn(installed, "/data")[0], "  export CAPSULE_DATA=/data");
});

test("a service of systemd names its command with the whole path: whoever reads the journal is not in its folder", () => {
  const service = placeOf({ ...started, env: { SYSTEMD_EXEC_PID: "77" } });
  const said = commandsIn(service, "/var/lib/capsule");
  assert.deepEqual(said.slice(0, 2), ["  export CAPSULE_DATA=/var/lib/capsule", "  ID=$(/opt/capsule/capsule create)"]);
  const inTerminal = placeOf({ ...started, env: { SYSTEMD_EXEC_PID: "76" } }); // that of a desktop, inherited
  assert.equal(commandsIn(inTerminal, "/opt/capsule/.capsule")[0], "  ID=$(./capsule create)");
});

test("who stops the server is told that capsules run on, and what ends them", () => {
  const ends = (place: { command: string; dataDir: string }, dataDir: string) =>
    /^SIGINT: .*running capsules go on.*; (.*) ends their VMs$/.exec(stopping("SIGINT", place, dataDir))?.[1];
  const service = placeOf({ ...started, env: { SYSTEMD_EXEC_PID: "77" } });
  assert.equal(ends(placeOf(started), "/opt/capsule/.capsule"), "./capsule down");
  assert.equal(ends(service, "/data"), "CAPSULE_DATA=/data /opt/capsule/capsule down");
});

test("doctor's verdict names what is missing, or each thing that is slow or less safe", () => {
  const ok: Finding = { word: "ok", name: "capsule", text: "Linux on kvm" };
  const slow: Finding = { word: "slow", name: "kvm", text: "KVM is not used: it is off; switch it on" };
  const warning: Finding = { word: "warning", name: "jail", text: "VMs run without a wall" };
  const missing: Finding = { word: "missing", name: "image", text: "it is not built: run ./dev image" };
  assert.match(verdictOn([ok]), /^All is well: a capsule was created/);
  const works = "A capsule was created, ran a command and was destroyed. It works, but:";
  assert.equal(verdictOn([ok, slow, warning]), `${works}\n  slow: ${slow.text}\n  warning: ${warning.text}`);
  assert.equal(verdictOn([ok, missing, slow]), "The service cannot run here yet: it is not built: run ./dev image.");
});
