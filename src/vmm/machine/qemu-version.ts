/** The installed QEMU's version. A saved VM is restored only by the version that saved it. */
import { CapsuleError } from "../../wire/errors.ts";
import { runHelper } from "../oom-score.ts";

/** The version, e.g. "10.0.2". Throws CapsuleError when the program does not run or print it. */
export async function qemuVersion([program, ...args]: readonly [string, ...string[]]): Promise<string> {
  const { stdout } = await runHelper(program, [...args, "--version"], { timeout: 10_000, maxBuffer: 65_536 }).catch(
    (cause: unknown) => {
      throw new CapsuleError("internal_error", `${program} did not run`, { cause });
    },
  );
  const version = /version (\d+\.\d+\.\d+)/.exec(stdout)?.[1];
  if (version === undefined) throw new CapsuleError("internal_error", `${program} did not print its version`);
  return version;
}

/**
 * True for QEMU 8.2 and later, which map the base's memory file read-only and load device state from a file by name.
 * Older versions need write access to both, so they run only without a jail. Three places depend on it: the memory
 * backend (qemu-args.ts), the source of the device state (qemu.ts) and requireJailable below.
 */
export function isRecent(version: string): boolean {
  const [major = 0, minor = 0] = version.split(".").map(Number);
  return major > 8 || (major === 8 && minor >= 2);
}

/** Throws CapsuleError, with the way to install a newer version, for a QEMU that cannot run in a jail. */
export function requireJailable(version: string): void {
  if (isRecent(version)) return;
  const onDebian =
    "on Debian 12 it is in bookworm-backports: apt-get install -t bookworm-backports qemu-system-x86 qemu-utils";
  throw new CapsuleError(
    "internal_error",
    `QEMU ${version} needs write access to templates, which the jail does not give; install QEMU 8.2 or later (${onDebian}), ` +
      "or set CAPSULE_JAIL=off to run hostile code without a jail",
  );
}
