/** What a program needs to see of this machine to run at all: itself, its libraries, and what its package brings. */
import { execFile } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { CapsuleError } from "../../wire/errors.ts";

const run = promisify(execFile);
const lookMs = 10_000;

export interface ProgramFiles {
  /** Absolute path of the program. */
  program: string;
  /** Files and folders that it reads. Libraries come as the folders they are in: a hundred mounts would cost a start. */
  readOnly: string[];
}

/** Throws CapsuleError when there is no such program. */
export async function programFilesOf(program: string): Promise<ProgramFiles> {
  const path = findProgram(program);
  if (path === undefined) throw new CapsuleError("internal_error", `${program} does not run here`);
  const { stdout } = await run("ldd", [path], { timeout: lookMs, maxBuffer: 1 << 20 }).catch(() => ({ stdout: "" }));
  const libraries = librariesIn(stdout);
  const folders = libraries.flatMap((library) => [dirname(library), dirname(realpathSync(library))]);
  const data = ["share/qemu", "share/seabios"].map((name) => join(dirname(realpathSync(path)), "..", name));
  return { program: path, readOnly: [...new Set([path, ...folders, ...data.filter(existsSync)])] };
}

/** The program's absolute path, as a shell would find it. */
export function findProgram(program: string): string | undefined {
  const folders = program.includes("/") ? [""] : (process.env.PATH ?? "/usr/bin:/bin").split(":");
  return folders.map((folder) => join(folder, program)).find((path) => path.startsWith("/") && existsSync(path));
}

/** From `ldd`'s lines, "libc.so.6 => /lib/…/libc.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)", the paths. */
export function librariesIn(said: string): string[] {
  return [...said.matchAll(/^\s*(?:\S+ => )?(\/\S+) \(0x[0-9a-f]+\)$/gm)].map((match) => match[1]!);
}
