/** QEMU's program as VMs are started from it: the installed one, or a copy of it with its libraries and firmware. */
import { basename } from "node:path";
import { findProgram, programFilesOf } from "../jail/program-files.ts";
import { qemuVersion } from "./qemu-version.ts";

export interface QemuProgram {
  /** As qemuVersion says it. */
  version: string;
  /** See Machine.qemuBuild. */
  build?: string;
  /** The beginning of its command line: the program by its absolute path, or its dynamic loader with everything it needs. */
  command: readonly [string, ...string[]];
  /** Files and folders that it needs, for its jail. */
  readOnly: string[];
}

/** The files of its command line that are executed. */
export function programsOf({ command }: Pick<QemuProgram, "command">): string[] {
  return command.filter((word, at) => at === 0 || basename(word).startsWith("qemu-system"));
}

/** The installed program, run from where it is. Throws CapsuleError when it is missing or does not run. */
export async function installedProgram(name: string): Promise<QemuProgram> {
  const version = await qemuVersion([findProgram(name) ?? name]);
  const { program, readOnly } = await programFilesOf(name);
  return { version, command: [program], readOnly };
}
