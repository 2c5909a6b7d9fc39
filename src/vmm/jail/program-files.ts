/** The files that a program needs at run time: its executable, its libraries, and its package's data. */
import { existsSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import { runHelper } from "../oom-score.ts";

const lddMs = 10_000;

export interface ProgramFiles {
  /** Absolute path of the program. */
  program: string;
  /** Its dynamic loader. Absent for a static program and for a script. */
  loader?: string;
  /** Its libraries, without the loader. */
  libraries: string[];
  /** Folders of its package's data: QEMU's firmware. */
  data: string[];
  /** Files and folders to mount. Libraries are given by their folders: a hundred mounts would slow down each start. */
  readOnly: string[];
}

/** Throws CapsuleError when there is no such program. */
export async function programFilesOf(program: string): Promise<ProgramFiles> {
  const path = findProgram(program);
  if (path === undefined) throw new CapsuleError("internal_error", `${program} is not installed`);
  const { loader, libraries } = await linkedFiles(path);
  const linked = loader === undefined ? libraries : [loader, ...libraries];
  const folders = linked.flatMap((library) => [dirname(library), dirname(realpathSync(library))]);
  const prefix = join(dirname(realpathSync(path)), "..");
  const data = ["share/qemu", "share/seabios"].map((name) => join(prefix, name)).filter(existsSync);
  const readOnly = [...new Set([path, ...folders, ...data])];
  return { program: path, ...(loader === undefined ? {} : { loader }), libraries, data, readOnly };
}

/** The loader and libraries of a program or library; none for a script. */
export async function linkedFiles(path: string): Promise<Pick<ProgramFiles, "loader" | "libraries">> {
  const { stdout } = await runHelper("ldd", [path], { timeout: lddMs, maxBuffer: 1 << 20 }).catch(() => ({
    stdout: "",
  }));
  return linkedFilesIn(stdout);
}

/** The program's absolute path, searched for in PATH. */
export function findProgram(program: string): string | undefined {
  const folders = program.includes("/") ? [""] : (process.env.PATH ?? "/usr/bin:/bin").split(":");
  return folders.map((folder) => join(folder, program)).find((path) => path.startsWith("/") && existsSync(path));
}

/** In ldd's output a library is "libc.so.6 => /lib/…/libc.so.6 (0x…)", the loader "/lib64/ld-linux-x86-64.so.2 (0x…)". */
export function linkedFilesIn(lddOutput: string): Pick<ProgramFiles, "loader" | "libraries"> {
  const lines = [...lddOutput.matchAll(/^\s*(\S+ => )?(\/\S+) \(0x[0-9a-f]+\)$/gm)];
  const loader = lines.findLast(([, name]) => name === undefined)?.[2]; // before it: libraries of LD_PRELOAD
  const libraries = lines.flatMap(([, name, path]) => (name === undefined ? [] : [path!]));
  return { ...(loader === undefined ? {} : { loader }), libraries };
}
