/** `capsule serve`: the daemon in the foreground; prints its progress and first commands on stderr. */
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { loadConfig, unknownSettings } from "../config.ts";
import { startDaemon } from "../daemon.ts";
import { type Engine, type KvmState, kvmState, weaknessesOf } from "./engine.ts";

export async function serve(): Promise<number> {
  const config = loadConfig();
  for (const sentence of unknownSettings()) console.error(`capsule: warning: ${sentence}`);
  const stopped = Promise.withResolvers<void>();
  const startedMs = performance.now();
  const place = placeOf({
    tree,
    installedData: installedData(),
    cwd: process.cwd(),
    pid: process.pid,
    env: process.env,
  });
  const daemon = await startDaemon(config, (step) => console.error(`capsule: ${step} …`));
  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    process.once(signal, () => {
      console.error(`capsule: ${stopping(signal, place, config.dataDir)}`);
      daemon.stop().then(stopped.resolve, stopped.reject);
    });
  }
  process.on("SIGHUP", () => renewCertificate(daemon));
  writeUrl(config.dataDir, daemon.url);
  const seconds = ((performance.now() - startedMs) / 1_000).toFixed(1);
  const kvm = kvmState(config.accelerator);
  console.error(welcome({ ...daemon, dataDir: config.dataDir, seconds, kvm, place }));
  await stopped.promise;
  return 0;
}

export function stopping(signal: string, { command, dataDir }: Place, served: string): string {
  const ends = `${served === dataDir ? "" : `CAPSULE_DATA=${served} `}${command} down`;
  return `${signal}: stopping; running capsules go on, and the next start adopts them; ${ends} ends their VMs`;
}

const tree = resolve(import.meta.dirname, "../..");

/** An installed release knows its data folder. */
function installedData(): string | undefined {
  const file = join(tree, "data-folder");
  return existsSync(file) ? readFileSync(file, "utf8").trim() : undefined;
}

/** The command line as the reader of this output has it. */
interface Place {
  command: string;
  /** The folder that it uses without CAPSULE_DATA. */
  dataDir: string;
}

interface Start {
  tree: string;
  installedData: string | undefined;
  cwd: string;
  pid: number;
  env: NodeJS.ProcessEnv;
}

/** The output of a systemd service is read in the journal, from any folder. */
export function placeOf({ tree, installedData, cwd, pid, env }: Start): Place {
  if (installedData !== undefined) return { command: "capsule", dataDir: installedData };
  const isRelative = cwd === tree && env.SYSTEMD_EXEC_PID !== String(pid);
  return { command: isRelative ? "./capsule" : join(tree, "capsule"), dataDir: join(tree, ".capsule") };
}

function renewCertificate(daemon: { renewCertificate(): void }): void {
  try {
    daemon.renewCertificate();
    console.error("capsule: SIGHUP: the TLS files were read again");
  } catch (error) {
    console.error(`capsule: SIGHUP: the old certificate stays in use: ${(error as Error).message}`);
  }
}

/** For `capsule` on the same machine. A failure, such as a full disk, is not fatal. */
function writeUrl(dataDir: string, url: string): void {
  const path = join(dataDir, "url");
  try {
    writeFileSync(`${path}.new`, `${url}\n`, { mode: 0o600 });
    renameSync(`${path}.new`, path);
  } catch (error) {
    console.error(`capsule: the address could not be written to ${path}: ${(error as Error).message}`);
  }
}

interface Welcome {
  url: string;
  newKey: string | undefined;
  engine: Engine;
  dataDir: string;
  seconds: string;
  kvm: KvmState;
  place: Place;
}

export function welcome({ url, newKey, engine, dataDir, seconds, kvm, place }: Welcome): string {
  const used = engine.accelerator === "kvm" ? "hardware virtualization (KVM)" : "software emulation";
  const lines = [`capsule: listening on ${url} after ${seconds} s, with ${used}`];
  for (const { word, text } of weaknessesOf(engine, kvm)) lines.push(`capsule: ${word}: ${text}`);
  if (newKey !== undefined) {
    const shown = process.stderr.isTTY ? `:\n\n  ${newKey}` : ""; // a key must not end up in a log file
    lines.push("", `The first API key, of team "default", is in ${dataDir}/api-key${shown}`);
  }
  const program = place.command;
  lines.push(
    "",
    "In another terminal of this user:",
    "",
    ...(dataDir === place.dataDir ? [] : [`  export CAPSULE_DATA=${dataDir}`]),
    `  ID=$(${program} create)`,
    `  ${program} exec $ID -- python3 -c 'print(6*7)'`,
    `  ${program} open         # a link to the dashboard`,
    "",
    `The API: ${url}/docs; for programs: export CAPSULE_URL=${url} CAPSULE_API_KEY=$(cat ${dataDir}/api-key)`,
    "",
  );
  return lines.join("\n");
}
