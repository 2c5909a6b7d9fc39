/**
 * The QEMU that emulates the machine: Debian 13's. Under that of bookworm's backports, 10.0.2, one boot in four lost a CPU's
 * timer. Its packages are unpacked, and it runs with the libraries among them:
 *
 *   <machines>/emulator-<key>/usr
 */
import { createHash } from "node:crypto";
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { proxyOptions, refreshIndexes, releaseSources, sourceLine } from "../../guest/image/apt.ts";
import { runProgram } from "../../guest/image/program.ts";
import { built } from "./built.ts";

/** Whose mirror, as this machine's apt knows it, has the other release too. */
const knownRelease = "bookworm";
const release = "trixie";

/** Its path and its first arguments. */
export type Program = readonly [string, ...string[]];

export async function emulator(machines: string): Promise<Program> {
  const key = createHash("sha256").update(await readFile(import.meta.filename));
  const folder = await built(machines, "emulator", key.digest("hex"), async (scratch) => {
    await refreshIndexes();
    await unpack(scratch);
  });
  const usr = join(folder, "usr");
  const libraries = join(usr, "lib/x86_64-linux-gnu");
  const firmware = ["qemu", "seabios"].flatMap((name) => ["-L", join(usr, "share", name)]);
  const program = join(usr, "bin/qemu-system-x86_64");
  return [join(libraries, "ld-linux-x86-64.so.2"), "--library-path", libraries, program, ...firmware];
}

async function unpack(folder: string): Promise<void> {
  const archive = join(folder, "packages.tar");
  const [known] = await releaseSources(knownRelease);
  const apt = ['Acquire::Languages "none"', 'APT::Install-Recommends "false"', ...(await proxyOptions())];
  const options = [
    "--variant=extract",
    "--format=tar",
    "--include=qemu-system-x86",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    ...apt.map((line) => `--aptopt=${line}`),
  ];
  await runProgram("mmdebstrap", [...options, release, archive, "-"], {
    input: `${sourceLine({ ...known!, suite: release })}\n`,
  });
  await runProgram("tar", ["--no-same-owner", "-xf", archive, "-C", folder, "./usr"]);
  await rm(archive);
}
