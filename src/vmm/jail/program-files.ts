/** The files that a program needs at run time: its executable, its libraries, and its package's data. */
import { existsSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import { runHelper } from "../oom-score.ts";

const lddMs = 10_000;

export interface ProgramFiles {
  /** Absolute path of the program. */
  program: string;
  /** Files and folders to mount. Libraries are given by their folders: a hundred mounts would slow down each start. */
  readOnly: string[];
}

/** Throws CapsuleError when there is no such program. */
export async function programFilesOf(program: string): Promise<ProgramFiles> {
  const path = findProgram(program);
  if (path === undefined) throw new CapsuleError("internal_error", `${program} is not installed`);
  const { stdout } = await runHelper("ldd", [path], { timeout: lddMs, maxBuffer: 1 << 20 }).catch(() => ({
    stdout: "",
  }));
  const libraries = librariesIn(stdout);
  const folders = libraries.flatMap((library) => [dirname(library), dirname(realpathSync(library))]);
  const data = ["share/qemu", "share/seabios"].map((name) => join(dirname(realpathSync(path)), "..", name));
  return { program: path, readOnly: [...new Set([path, ...folders, ...data.filter(existsSync)])] };
}

/** The program's absolute path, searched for in PATH. */
export function findProgram(program: string): string | undefined {
  const folders = program.includes("/") ? [""] : (process.env.PATH ?? "/usr/bin:/bin").split(":");
  return folders.map((folder) => join(folder, program)).find((path) => path.startsWith("/") && existsSync(path));
}

/** Paths in ldd's output: "libc.so.6 => /lib/…/libc.so.6 (0x…)" or "/lib64/ld-linux-x86-64.so.2 (0x…)". */
export function librariesIn(lddOutput: string): string[] {
  return [...lddOutput.matchAll(/^\s*(?:\S+ => )?(\/\S+) \(0x[0-9a-f]+\)$/gm)].map((match) => match[1]!);
}
