/**
 * The machine's root disk: Debian 12 with systemd, a kernel and what Capsule needs at run time, from the packages of the
 * mirrors that this machine's apt knows. Kept in a folder named by the hash of what it is made of:
 *
 *   <machines>/root-<key>/  root.ext4  kernel  initrd  key  key.pub
 */
import { createHash } from "node:crypto";
import { chmod, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { proxyOptions, refreshIndexes, releaseSources, sourceLine } from "../../guest/image/apt.ts";
import { runProgram } from "../../guest/image/program.ts";
import { built } from "./built.ts";
import type { Shape } from "./shape.ts";

const release = "bookworm";
const diskMb = 8_192;

const packages = [
  ...["systemd-sysv", "dbus", "libpam-systemd", "dbus-user-session", "linux-image-amd64", "kmod", "udev"],
  ...["openssh-server", "iproute2", "procps", "util-linux", "psmisc"],
  ...["qemu-system-x86", "qemu-utils", "bubblewrap", "uidmap"],
  // The probe of test/jail is compiled where it runs.
  ...["gcc", "libc6-dev"],
  // The packages that ./dev asks for beyond tools that only a build needs.
  ...["mmdebstrap", "e2fsprogs", "xz-utils", "curl", "git", "ca-certificates", "fakeroot"],
];

export interface RootDisk {
  disk: string;
  kernel: string;
  initrd: string;
  /** The private key that root and the ordinary user accept. */
  sshKey: string;
}

export async function rootDisk(machines: string, shape: Shape): Promise<RootDisk> {
  const versions = { kernel: shape.kernel, qemu: shape.qemu };
  const folder = await built(machines, "root", await keyOf(versions), async (scratch) => {
    await refreshIndexes();
    await build(scratch, versions);
  });
  const [disk, kernel, initrd, sshKey] = ["root.ext4", "kernel", "initrd", "key"].map((name) => join(folder, name));
  return { disk: disk!, kernel: kernel!, initrd: initrd!, sshKey: sshKey! };
}

type Versions = Pick<Shape, "kernel" | "qemu">;

async function keyOf(versions: Versions): Promise<string> {
  const hash = createHash("sha256").update(JSON.stringify(versions));
  for (const name of ["root-disk.ts", "customize"]) hash.update(await readFile(join(import.meta.dirname, name)));
  return hash.digest("hex");
}

async function build(folder: string, versions: Versions): Promise<void> {
  const key = join(folder, "key");
  await runProgram("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-C", "capsule-machine", "-f", key]);
  const archive = join(folder, "root.tar");
  await bootstrap(archive, versions, await readFile(`${key}.pub`, "utf8"));
  await extractBoot(archive, folder);
  const disk = join(folder, "root.ext4");
  await writeFile(disk, "");
  await truncate(disk, diskMb * 2 ** 20);
  await makeFileSystem(archive, join(folder, "tree"), disk);
  await rm(archive);
  await chmod(disk, 0o444);
}

async function bootstrap(archive: string, versions: Versions, publicKey: string): Promise<void> {
  const apt = ['Acquire::Languages "none"', ...(await proxyOptions())];
  const options = [
    "--variant=minbase",
    "--format=tar",
    `--include=${packages.join(",")}`,
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    ...apt.map((line) => `--aptopt=${line}`),
    '--setup-hook=bash -c "$MACHINE_CUSTOMIZE" customize setup "$1"',
    '--customize-hook=bash -c "$MACHINE_CUSTOMIZE" customize finish "$1"',
  ];
  const backports = `${release}-backports`;
  const sources = await releaseSources(release, [backports]);
  if (!sources.some(({ suite }) => suite === backports)) throw new Error(`apt on this machine has no ${backports}`);
  await runProgram("mmdebstrap", [...options, release, archive, "-"], {
    input: `${sources.map(sourceLine).join("\n")}\n`,
    environment: {
      MACHINE_CUSTOMIZE: await readFile(join(import.meta.dirname, "customize"), "utf8"),
      MACHINE_PREFERENCES: preferences(versions),
      MACHINE_KEY: publicKey,
    },
  });
}

/** apt's: which packages come from the backports. */
function preferences({ kernel, qemu }: Versions): string {
  const wanted = [
    ...(kernel === "backports" ? ["linux-image-*"] : []),
    ...(qemu === "10" ? ["src:qemu", "src:seabios"] : []),
  ];
  return wanted.map((name) => `Package: ${name}\nPin: release n=${release}-backports\nPin-Priority: 990\n`).join("\n");
}

/** The kernel and its initial file system, which QEMU loads itself: the machine needs no boot loader. */
async function extractBoot(archive: string, folder: string): Promise<void> {
  const script = `set -e
    cd "$2"
    tar -xf "$1" --wildcards './boot/vmlinuz-*' './boot/initrd.img-*'
    mv boot/vmlinuz-* kernel
    mv boot/initrd.img-* initrd
    rmdir boot`;
  await runProgram("sh", ["-c", script, "sh", archive, folder]);
}

/** Owners in the archive become owners in the image: as root by unpacking it, else inside fakeroot. */
async function makeFileSystem(archive: string, tree: string, disk: string): Promise<void> {
  const script = `set -e
    mkdir "$2"
    tar --numeric-owner -xpf "$1" -C "$2"
    mke2fs -q -F -t ext4 -d "$2" -m 0 -E root_owner=0:0,assume_storage_prezeroed=1 "$3"
    rm -rf "$2"`;
  const shell = ["sh", "-c", script, "sh", archive, tree, disk];
  const command = process.getuid?.() === 0 ? shell : ["fakeroot", ...shell];
  await runProgram(command[0]!, command.slice(1));
}
