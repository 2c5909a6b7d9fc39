/**
 * Jails whose server is killed by SIGKILL while they are built. Bubblewrap dies where it cannot tell which process it has started, and
 * that one would wait for ever.
 */
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { loadConfig } from "../../src/config.ts";
import { killJailOf } from "../../src/vmm/jail/jail-leftovers.ts";
import { findProgram, programFilesOf } from "../../src/vmm/jail/program-files.ts";
import { waitFor, within } from "../wait-for.ts";

const folder = mkdtempSync(join(tmpdir(), "capsule-killed-"));
chmodSync(folder, 0o755);
after(() => rmSync(folder, { recursive: true }));

const source = (path: string) => JSON.stringify(join(import.meta.dirname, "../../src", path));

/** In a server's place: it acts in a jail, and kills itself when it has started the process with this argument. */
async function killServer(argument: string, act: string, env = process.env): Promise<void> {
  const script = `
import { subscribe } from "node:diagnostics_channel";
import { startRelay } from ${source("relay/start.ts")};
import { Jail } from ${source("vmm/jail/jail.ts")};
const jail = await Jail.open({ uids: ${JSON.stringify(loadConfig({}).jailUids)} });
const die = ({ spawnargs }) => spawnargs.includes(${JSON.stringify(argument)}) && process.kill(process.pid, "SIGKILL");
subscribe("child_process", ({ process: child }) => child.once("spawn", () => die(child)));
${act}`;
  const args = ["--input-type=module-typescript", "-e", script];
  const server = spawn(process.execPath, args, { stdio: ["ignore", "inherit", "inherit"], env });
  assert.deepEqual(await once(server, "exit"), [null, "SIGKILL"]);
}

function commandLines(): string[] {
  const pids = readdirSync("/proc").filter((entry) => /^\d+$/.test(entry));
  return pids.map((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "latin1");
    } catch {
      return ""; // it has ended
    }
  });
}

const isGone = (argument: string) => !commandLines().some((line) => line.split("\0").includes(argument));

test("nothing stays of a relay, whatever its program does", async () => {
  const program = join(folder, "endless.ts");
  writeFileSync(program, "process.on('disconnect', () => {}); setInterval(() => {}, 1e9);");
  await killServer(program, `await startRelay({ jail, program: ${JSON.stringify(program)} });`);
  await waitFor("its processes are gone", () => isGone(program));
});

/**
 * A folder with a bubblewrap that waits for the server's end where it has this argument. It and all that it starts have the pipe of this
 * path open.
 */
function slowBwrap(argument: string, pipe: string): string {
  const wait = `exec 9>${pipe}; read -r server <${folder}/server; while kill -0 $server 2>/dev/null; do :; done`;
  const script = `case " $* " in *" ${argument} "*) ${wait};; esac\nexec ${findProgram("bwrap")} "$@"`;
  writeFileSync(join(folder, "bwrap"), `#!/bin/sh\n${script}`, { mode: 0o755 });
  return folder;
}

test("a program that is run to its end ends", async () => {
  const seconds = `0.${process.pid}`;
  const pipe = join(folder, "pipe");
  execFileSync("mkfifo", [pipe]);
  const lastCloses = once(spawn("cat", [pipe], { stdio: "ignore" }), "exit");
  const { program, readOnly } = await programFilesOf("sleep");
  const limits = { fileBytes: 0, dataBytes: 1 << 30, processes: 64, openFiles: 64, cpus: 1 };
  const profile = { readOnly, writable: [], deviceNodes: [], folder: "/", limits };
  const run = `
await import("node:fs").then(({ writeFileSync }) => writeFileSync(${JSON.stringify(join(folder, "server"))}, process.pid + "\\n"));
await jail.run(${JSON.stringify([program, seconds])}, ${JSON.stringify(profile)});`;
  await killServer(seconds, run, { ...process.env, PATH: `${slowBwrap(seconds, pipe)}:${process.env.PATH}` });
  await within("all have ended", lastCloses);
});

test("bubblewrap is killed with the process that it has started, or before it starts one", async () => {
  const seconds = `${100_000 + process.pid}`;
  const jail = [findProgram("bwrap")!, "--unshare-pid", "--as-pid-1", "--dev-bind", "/", "/", "sleep", seconds];
  for (const started of [true, false]) {
    const bwrap = spawn(jail[0]!, jail.slice(1), { stdio: "ignore" });
    const ended = once(bwrap, "exit");
    if (started) await waitFor("the program runs", () => commandLines().includes(`sleep\0${seconds}\0`));
    killJailOf(bwrap.pid!);
    await ended;
    await waitFor("both are gone", () => isGone(seconds));
  }
});
