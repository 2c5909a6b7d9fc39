/**
 * A bare Debian 12 for an install: the file system of the built image, which has no tool chain, no npm and no QEMU, mounted in a
 * loop device. QEMU, bubblewrap and their libraries are copied from this machine, and a command sees no network.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

const programs = ["qemu-system-x86_64", "qemu-img", "bwrap"];
const folders = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/x86_64-linux-gnu/qemu"];

export class BareRoot {
  readonly #folder = mkdtempSync(join(tmpdir(), "capsule-bare-"));
  readonly path = join(this.#folder, "mounted");

  /** Mounts a copy of the image's disk; returns the reason when that fails. */
  mount(image: string): string | undefined {
    const disk = join(this.#folder, "disk");
    try {
      execFileSync("cp", ["--sparse=always", join(image, "root.ext4"), disk]);
      execFileSync("chmod", ["600", disk]);
      mkdirSync(this.path);
      execFileSync("mount", ["-o", "loop", disk, this.path], { stdio: "pipe" });
      return undefined;
    } catch (error) {
      rmSync(this.#folder, { recursive: true });
      return `a loop device cannot be mounted: ${String(error).trim().split("\n").at(-1)}`;
    }
  }

  /** Stands for the packages that an install fetches. */
  addQemu(): void {
    for (const each of programs) {
      const path = execFileSync("which", [each], { encoding: "utf8" }).trim();
      this.#add(path);
      for (const [, library] of execFileSync("ldd", [path], { encoding: "utf8" }).matchAll(/(\/\S+) \(0x/g)) {
        this.#add(library!);
      }
    }
    for (const each of folders.filter(existsSync)) cpSync(each, join(this.path, each), { recursive: true });
  }

  /** A file of this machine, at the same path. */
  #add(path: string): void {
    const to = join(this.path, path);
    if (existsSync(to)) return;
    mkdirSync(dirname(to), { recursive: true });
    cpSync(realpathSync(path), to);
  }

  /** A shell script in the root, alone in its network and its processes; all of them end with it. */
  start(script: string): ChildProcess {
    const walls = ["--bind", this.path, "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/run"];
    const apart = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--cap-add", "ALL"];
    const env = { PATH: "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", HOME: "/root", LANG: "C.UTF-8" };
    const args = [...walls, ...apart, "--chdir", "/root", "bash", "-euo", "pipefail", "-c", script];
    return spawn("bwrap", args, { env, stdio: ["ignore", "pipe", "pipe"] });
  }

  unmount(): void {
    if (!existsSync(this.path)) return;
    execFileSync("umount", ["--lazy", this.path]);
    rmSync(this.#folder, { recursive: true });
  }
}
