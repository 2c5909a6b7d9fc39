/**
 * A bare Debian for an install, without a tool chain and npm. Debian 12 is the file system of the built image, mounted in a loop
 * device, with QEMU, bubblewrap and their libraries copied from this machine. Debian 13 is bootstrapped, with QEMU and bubblewrap of its
 * own. A command sees no network.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { releaseSources } from "../../guest/image/apt.ts";

const programs = ["qemu-system-x86_64", "qemu-img", "bwrap"];
/** That an install on Debian 13 would fetch, and curl for the test. */
const packages = ["bubblewrap", "curl", "qemu-system-x86", "qemu-utils"];
const folders = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/x86_64-linux-gnu/qemu"];

export class BareRoot {
  readonly #folder = mkdtempSync(join(tmpdir(), "capsule-bare-"));
  readonly path = join(this.#folder, "root");
  #isMounted = false;

  /** Mounts a copy of the image's disk; returns the reason when that fails. */
  mount(image: string): string | undefined {
    const disk = join(this.#folder, "disk");
    try {
      execFileSync("cp", ["--sparse=always", join(image, "root.ext4"), disk]);
      execFileSync("chmod", ["600", disk]);
      mkdirSync(this.path);
      execFileSync("mount", ["-o", "loop", disk, this.path], { stdio: "pipe" });
      this.#isMounted = true;
    } catch (error) {
      return `a loop device cannot be mounted: ${String(error).trim().split("\n").at(-1)}`;
    }
    this.#addQemu();
    return undefined;
  }

  /** From the mirror that this machine's apt has for Debian 12. */
  async bootstrap(suite: string): Promise<void> {
    const [source] = await releaseSources("bookworm");
    const include = `--include=${packages.join(",")}`;
    execFileSync("mmdebstrap", ["--variant=minbase", include, suite, this.path, source!.uri], { stdio: "pipe" });
  }

  /** Stands for the packages that an install fetches. */
  #addQemu(): void {
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

  remove(): void {
    if (this.#isMounted) execFileSync("umount", ["--lazy", this.path]);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
