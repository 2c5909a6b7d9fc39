/** The builds of QEMU that tests' servers run VMs from, and a QEMU of a test's own, which is another build once a byte of it differs. */
import assert from "node:assert/strict";
import { cp, mkdir, readdir, readFile, realpath, symlink } from "node:fs/promises";
import { join } from "node:path";
import { readCapsule, readVm } from "../src/host/disk/capsule-folder.ts";
import { findProgram } from "../src/vmm/jail/program-files.ts";

export const realQemu: string =
  findProgram(process.env.CAPSULE_QEMU ?? "qemu-system-x86_64") ?? assert.fail("QEMU is not installed");

/** Copies the installed QEMU into a folder; resolves with the copy's path. */
export async function copyQemu(folder: string): Promise<string> {
  const program = join(folder, "bin/qemu-system-x86_64");
  for (const name of ["bin", "share"]) await mkdir(join(folder, name), { recursive: true });
  await cp(await realpath(realQemu), program);
  for (const name of ["qemu", "seabios"]) await symlink(join("/usr/share", name), join(folder, "share", name));
  return program;
}

/** The hashes of the builds that a data folder has. */
export async function buildsIn(dataDir: string): Promise<string[]> {
  return (await readdir(join(dataDir, "qemu"))).filter((name) => name !== "sources.json");
}

/** The version in a capsule's record, and the kept build that its process was started from, both of a capsule that runs. */
export async function qemuOf(dataDir: string, id: string): Promise<{ version: string; build: string }> {
  const folder = join(dataDir, "capsules", id);
  const [capsule, vm] = await Promise.all([readCapsule(folder), readVm(folder)]);
  const { qemu, qemuBuild } = capsule!.machine;
  const [program = ""] = (await readFile(`/proc/${vm?.process?.pid}/cmdline`, "utf8")).split("\0");
  const build = program.split("/").at(-3)!;
  assert.equal(build, qemuBuild);
  return { version: qemu, build };
}
