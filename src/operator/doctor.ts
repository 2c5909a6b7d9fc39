/**
 * `capsule doctor`: checks the requirements of the service, then creates a capsule, runs a command in it and destroys
 * it. The last line is a verdict: all is well, or what is missing and how to get it.
 */
import { existsSync, readFileSync, statfsSync } from "node:fs";
import { freemem, totalmem } from "node:os";
import { join } from "node:path";
import { foreignOwner } from "../cli/data-folder.ts";
import { type Config, loadConfig } from "../config.ts";
import { startDaemon } from "../daemon.ts";
import { isLocked } from "../host/disk/lock.ts";
import { loadImage } from "../host/images/images.ts";
import { Jail, noJail } from "../vmm/jail/jail.ts";
import { qemuVersion, requireJailable } from "../vmm/qemu-version.ts";
import { createDefaults } from "../wire/defaults.ts";
import { messageOf } from "../wire/errors.ts";

/** The result of one check: what was found, or what is missing, with a remedy. */
type Finding = { name: string; found: string } | { name: string; missing: string };

const leastFreeMb = 2_048;

export async function doctor(): Promise<number> {
  const config = loadConfig();
  const findings = await check(config);
  for (const finding of findings) {
    const isFound = "found" in finding;
    console.log(
      `${isFound ? "ok     " : "missing"}  ${finding.name.padEnd(12)} ${isFound ? finding.found : finding.missing}`,
    );
  }
  const missing = findings.find((finding) => "missing" in finding);
  if (missing !== undefined) {
    console.log(`\nThe service cannot run here yet: ${(missing as { missing: string }).missing}.`);
    return 1;
  }
  try {
    console.log(`ok       capsule      ${await tryCapsule(config)}`);
  } catch (error) {
    console.log(`\nA capsule did not work here: ${messageOf(error)}.`);
    return 1;
  }
  console.log("\nAll is well: a capsule was created, ran a command and was destroyed.");
  return 0;
}

async function check(config: Config): Promise<Finding[]> {
  const mib = 1 << 20;
  const folder = existsSync(config.dataDir) ? config.dataDir : "/";
  const disk = statfsSync(folder);
  const freeMb = Math.floor((disk.bavail * disk.bsize) / mib);
  return [
    { name: "node", found: process.version },
    await finding(
      "qemu",
      async () => `${config.qemu} ${await qemuVersion([config.qemu])}`,
      "run ./dev up as root, or install qemu-system-x86 by apt",
    ),
    ...(await checkData(config)),
    await finding("jail", () => checkJail(config), "VMs are not started without a jail"),
    { name: "memory", found: `${Math.floor(freemem() / mib)} of ${Math.floor(totalmem() / mib)} MiB free` },
    freeMb >= leastFreeMb
      ? { name: "disk", found: `${freeMb} MiB free at ${folder}` }
      : { name: "disk", missing: `free some disk at ${folder}: ${freeMb} MiB are left, ${leastFreeMb} are needed` },
    {
      name: "kvm",
      found: existsSync("/dev/kvm") ? "/dev/kvm exists (the boot below tests it)" : "no /dev/kvm",
    },
  ];
}

/** Another user's data folder hides whether an image is built. */
async function checkData({ dataDir }: Config): Promise<Finding[]> {
  const foreign = foreignOwner();
  if (foreign !== undefined) return [{ name: "data", missing: `${foreign}: use sudo` }];
  const image = async () => {
    const { manifest } = loadImage(dataDir, createDefaults.template);
    return `${manifest.name}, built ${manifest.built_at}, kernel ${manifest.kernel_release}`;
  };
  return [
    { name: "data", found: existsSync(dataDir) ? dataDir : `${dataDir}, made by the first start` },
    await finding("image", image, "run ./dev image to build the image"),
  ];
}

async function checkJail({ jail, jailUids, qemu }: Config): Promise<string> {
  // A missing QEMU is reported by its own check.
  const version = jail === "off" ? undefined : await qemuVersion([qemu]).catch(() => undefined);
  if (version !== undefined) requireJailable(version);
  const { mode, cgroup, missing } = jail === "off" ? noJail : (await Jail.open({ uids: jailUids })).report();
  const lacks = missing.length === 0 ? "" : `; without ${missing.join("; without ")}`;
  return `${mode}, control groups ${cgroup}${lacks}`;
}

async function finding(name: string, probe: () => Promise<string>, remedy: string): Promise<Finding> {
  try {
    return { name, found: await probe() };
  } catch (error) {
    return { name, missing: `${messageOf(error)}: ${remedy}` };
  }
}

/** Through the running server of this data folder, or a temporary one. */
async function tryCapsule(config: Config): Promise<string> {
  if (isLocked(config.dataDir)) return useCapsule(config, readFileSync(join(config.dataDir, "url"), "utf8").trim());
  const daemon = await startDaemon({ ...config, port: 0, logLevel: "silent" }, (step) =>
    console.error(`doctor: ${step} …`),
  );
  try {
    return await useCapsule(config, daemon.url);
  } finally {
    await daemon.stop();
  }
}

async function useCapsule(config: Config, url: string): Promise<string> {
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
    const times = `running after ${createMs.toFixed(0)} ms, first command ${execMs.toFixed(0)} ms`;
    const engine = `${health.accelerator} (${health.accelerator_reason})`;
    return `${String(result.stdout).trim()} on ${engine}: ${times}`;
  } finally {
    await ask("DELETE", `/v1/capsules/${id}`);
  }
}
