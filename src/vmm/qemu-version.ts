/** Which QEMU is installed: a saved VM is restored by the version that saved it. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { CapsuleError } from "../wire/errors.ts";
import { isRecent } from "./qemu-args.ts";

const run = promisify(execFile);

/** "10.0.2". Throws CapsuleError when the program does not run or does not say. */
export async function qemuVersion(program: string): Promise<string> {
  const { stdout } = await run(program, ["--version"], { timeout: 10_000, maxBuffer: 65_536 }).catch(
    (cause: unknown) => {
      throw new CapsuleError("internal_error", `${program} does not run here`, { cause });
    },
  );
  const version = /version (\d+\.\d+\.\d+)/.exec(stdout)?.[1];
  if (version === undefined) throw new CapsuleError("internal_error", `${program} does not say its version`);
  return version;
}

/** Throws CapsuleError, which says how to get another, when no jail can hold this version. */
export function requireJailable(version: string): void {
  if (isRecent(version)) return;
  const onDebian =
    "on Debian 12 it is in bookworm-backports: apt-get install -t bookworm-backports qemu-system-x86 qemu-utils";
  throw new CapsuleError(
    "internal_error",
    `QEMU ${version} wants to write to templates, which no jail allows; install QEMU 8.2 or later (${onDebian}), ` +
      "or set CAPSULE_JAIL=off to run hostile code without a jail",
  );
}
