/**
 * `capsule doctor`: checks the requirements of the service, then creates a capsule, runs a command in it and destroys
 * it. The last lines are a verdict: all is well, or what is missing, slow or less safe, each with its remedy.
 */
import { existsSync, readFileSync, statfsSync } from "node:fs";
import { freemem, totalmem } from "node:os";
import { join } from "node:path";
import { foreignOwner } from "../cli/data-folder.ts";
import { type Config, loadConfig } from "../config.ts";
import { startDaemon } from "../daemon.ts";
import { isLocked } from "../host/disk/lock.ts";
import { loadImage } from "../host/images/images.ts";
import { parseGrants } from "../network/grants.ts";
import { Jail, noJail } from "../vmm/jail/jail.ts";
import { qemuVersion, requireJailable } from "../vmm/machine/qemu-version.ts";
import { createDefaults } from "../wire/defaults.ts";
import { messageOf } from "../wire/errors.ts";
import { Listener, tryNetwork } from "./doctor-network.ts";
import { type Engine, kvmState, weaknessesOf } from "./engine.ts";

/** The result of one check. Any word but `ok` comes with a remedy. */
export interface Finding {
  word: "ok" | "slow" | "warning" | "missing";
  name: string;
  text: string;
}

const leastFreeMb = 2_048;

export async function doctor(): Promise<number> {
  const config = loadConfig();
  const findings = await check(config);
  findings.forEach(print);
  if (findings.some(({ word }) => word === "missing")) {
    console.log(`\n${verdictOn(findings)}`);
    return 1;
  }
  try {
    const tried = await tryCapsule(config);
    tried.forEach(print);
    const notes = findings.filter(({ word }) => word === "warning");
    console.log(`\n${verdictOn([...notes, ...tried])}`);
    return 0;
  } catch (error) {
    console.log(`\nA capsule did not work here: ${messageOf(error)}.`);
    return 1;
  }
}

function print({ word, name, text }: Finding): void {
  console.log(`${word.padEnd(8)} ${name.padEnd(12)} ${text}`);
}

/** The last lines of the report. A missing part has kept the trial capsule from being started. */
export function verdictOn(findings: readonly Finding[]): string {
  const missing = findings.find(({ word }) => word === "missing");
  if (missing !== undefined) return `The service cannot run here yet: ${missing.text}.`;
  const lines = findings.filter(({ word }) => word !== "ok").map(({ word, text }) => `\n  ${word}: ${text}`);
  return lines.length === 0
    ? "All is well: a capsule was created, ran a command and was destroyed."
    : `A capsule was created, ran a command and was destroyed. It works, but:${lines.join("")}`;
}

async function check(config: Config): Promise<Finding[]> {
  const mib = 1 << 20;
  const folder = existsSync(config.dataDir) ? config.dataDir : "/";
  const disk = statfsSync(folder);
  const freeMb = Math.floor((disk.bavail * disk.bsize) / mib);
  return [
    { word: "ok", name: "node", text: process.version },
    await finding(
      "qemu",
      async () => `${config.qemu} ${await qemuVersion([config.qemu])}`,
      "run ./dev up as root, or install qemu-system-x86 by apt",
    ),
    ...(await checkData(config)),
    ...(await checkCluster(config)),
    await finding("jail", () => checkJail(config), "VMs are not started without a jail"),
    { word: "ok", name: "memory", text: `${Math.floor(freemem() / mib)} of ${Math.floor(totalmem() / mib)} MiB free` },
    freeMb >= leastFreeMb
      ? { word: "ok", name: "disk", text: `${freeMb} MiB free at ${folder}` }
      : {
          word: "missing",
          name: "disk",
          text: `free some disk at ${folder}: ${freeMb} MiB are left, ${leastFreeMb} are needed`,
        },
  ];
}

/** A host alone loads nothing of this. */
async function checkCluster({ cluster, dataDir }: Config): Promise<Finding[]> {
  if (cluster === undefined) return [];
  const { databaseFindings } = await import("./database-check.ts");
  const { bucketFindings } = await import("./bucket-check.ts");
  const { imageFindings } = await import("./images-check.ts");
  const { peerFindings } = await import("./peers-check.ts");
  const ofBucket = [...(await bucketFindings(cluster)), ...(await imageFindings(cluster, dataDir))];
  const found = [...(await databaseFindings(cluster)), ...ofBucket];
  return [...found, ...(await peerFindings(cluster, dataDir, isLocked(dataDir)))];
}

/** Another user's data folder hides whether an image is built. */
async function checkData({ dataDir }: Config): Promise<Finding[]> {
  const foreign = foreignOwner();
  if (foreign !== undefined) return [{ word: "missing", name: "data", text: `${foreign}: use sudo` }];
  const image = async () => {
    const { manifest } = loadImage(dataDir, createDefaults.template);
    return `${manifest.name}, built ${manifest.built_at}, kernel ${manifest.kernel_release}`;
  };
  return [
    { word: "ok", name: "data", text: existsSync(dataDir) ? dataDir : `${dataDir}, made by the first start` },
    await finding("image", image, "run ./dev image to build the image"),
  ];
}

async function checkJail({ jail, jailUids, qemu }: Config): Promise<string> {
  // A missing QEMU is reported by its own check.
  const version = jail === "off" ? undefined : await qemuVersion([qemu]).catch(() => undefined);
  if (version !== undefined) requireJailable(version);
  const { mode, cgroup } = jail === "off" ? noJail : (await Jail.open({ uids: jailUids })).report();
  return `${mode}, control groups ${cgroup}`;
}

async function finding(name: string, probe: () => Promise<string>, remedy: string): Promise<Finding> {
  try {
    return { word: "ok", name, text: await probe() };
  } catch (error) {
    return { word: "missing", name, text: `${messageOf(error)}: ${remedy}` };
  }
}

/** Through the running server of this data folder, or a temporary one. */
async function tryCapsule(config: Config): Promise<Finding[]> {
  if (isLocked(config.dataDir)) return useCapsule(config, readFileSync(join(config.dataDir, "url"), "utf8").trim());
  await using listener = await Listener.open();
  const egressGrant = [...config.egressGrant, ...parseGrants(`host:${listener.port}`)];
  const daemon = await startDaemon({ ...config, port: 0, logLevel: "silent", egressGrant }, (step) =>
    console.error(`doctor: ${step} …`),
  );
  try {
    return await useCapsule(config, daemon.url, listener.port);
  } finally {
    await daemon.stop();
  }
}

/** `granted`: a port of this machine that the server lets a policy name. */
async function useCapsule(config: Config, url: string, granted?: number): Promise<Finding[]> {
  const key = readFileSync(join(config.dataDir, "api-key"), "utf8").trim();
  const ask = async (method: string, path: string, body?: object) => {
    const headers = { "x-api-key": key, ...(body === undefined ? {} : { "content-type": "application/json" }) };
    const response = await fetch(url + path, {
      method,
      headers,
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path} answered ${response.status} ${text}`);
    return text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
  };
  const health = await ask("GET", "/healthz");
  const { wait_max_sec } = await ask("GET", "/v1/limits");
  const began = performance.now();
  const { id } = await ask("POST", "/v1/capsules", {});
  try {
    const view = await ask("GET", `/v1/capsules/${id}?wait=running&timeout=${Math.min(120, Number(wait_max_sec))}`);
    if (view.status !== "running") throw new Error(`the capsule is ${view.status}: ${view.error_reason}`);
    const createMs = performance.now() - began;
    const result = await ask("POST", `/v1/capsules/${id}/exec`, { cmd: "uname", args: ["-sr"] });
    if (result.exit_code !== 0) throw new Error(`uname ended with ${result.exit_code}: ${result.stderr}`);
    const execMs = performance.now() - began - createMs;
    const network = await tryNetwork(ask, `/v1/capsules/${id}`, granted);
    const times = `running after ${createMs.toFixed(0)} ms, first command ${execMs.toFixed(0)} ms`;
    const engine = health as unknown as Engine;
    const weaknesses = weaknessesOf(engine, kvmState(config.accelerator));
    return [
      { word: "ok", name: "capsule", text: `${String(result.stdout).trim()} on ${engine.accelerator}: ${times}` },
      network,
      ...weaknesses.map(({ word, text }) => ({ word, name: word === "slow" ? "kvm" : "jail", text })),
    ];
  } finally {
    await ask("DELETE", `/v1/capsules/${id}`);
  }
}
