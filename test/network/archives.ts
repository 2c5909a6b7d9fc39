/**
 * Content for servers of software archives, made in a folder: a file, a repository of git, one of apt, an index of pip, a registry of npm,
 * and Node with npm. Each package brings the same random bytes.
 */
import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { cpSync, existsSync, mkdirSync, realpathSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { crc32 } from "node:zlib";

const payloadBytes = 1_500_000;
/** Author of the commits, and maintainer of the Debian package. */
const maker = { name: "maker", email: "maker@a.example" };

const sha256 = (bytes: Buffer) => createHash("sha256").update(bytes).digest("hex");

export interface Archives {
  folder: string;
  /** SHA-256 of the bytes in each package. */
  sha256: string;
}

export function makeArchives(folder: string): Archives {
  const payload = randomBytes(payloadBytes);
  const at = (...names: string[]) => {
    const path = join(folder, ...names);
    mkdirSync(path, { recursive: true });
    return path;
  };
  writeFileSync(join(at("files"), "payload"), payload);
  makeGit(at("git"), at("made", "git"), payload);
  makeApt(at("apt"), at("made", "apt"), payload);
  makePip(at("pip"), payload);
  makeNpm(at("npm"), at("made", "npm", "package"), payload);
  return { folder, sha256: sha256(payload) };
}

function makeGit(folder: string, work: string, payload: Buffer): void {
  writeFileSync(join(work, "payload"), payload);
  const bare = join(folder, "made.git");
  const git = (cwd: string, ...args: string[]) => {
    const who = ["-c", `user.name=${maker.name}`, "-c", `user.email=${maker.email}`];
    execFileSync("git", [...who, ...args], { cwd, stdio: "pipe" });
  };
  git(work, "init", "--quiet", "--initial-branch=main");
  git(work, "add", "payload");
  git(work, "commit", "--quiet", "--message=payload");
  git(folder, "clone", "--quiet", "--bare", work, bare);
  git(bare, "config", "http.receivepack", "true");
}

function makeApt(folder: string, work: string, payload: Buffer): void {
  const fields = {
    Package: "made",
    Version: "1.0",
    Architecture: "all",
    Maintainer: `${maker.name} <${maker.email}>`,
    Description: "a payload",
  };
  const paragraph = (of: Record<string, string | number>) =>
    Object.entries(of)
      .map(([name, value]) => `${name}: ${value}\n`)
      .join("");
  for (const each of ["DEBIAN", "usr/share/made"]) mkdirSync(join(work, each), { recursive: true, mode: 0o755 });
  writeFileSync(join(work, "DEBIAN/control"), paragraph(fields));
  writeFileSync(join(work, "usr/share/made/payload"), payload);
  const build = ["--build", "--root-owner-group", "-Znone", work, join(folder, "made.deb")];
  execFileSync("dpkg-deb", build, { stdio: "pipe" });
  const hashed = (name: string) => {
    const bytes = execFileSync("cat", [join(folder, name)], { maxBuffer: 2 * payloadBytes });
    return { size: bytes.length, hash: sha256(bytes) };
  };
  const { size, hash } = hashed("made.deb");
  writeFileSync(join(folder, "Packages"), paragraph({ ...fields, Filename: "./made.deb", Size: size, SHA256: hash }));
  const index = hashed("Packages");
  const date = new Date().toUTCString();
  writeFileSync(join(folder, "Release"), `Date: ${date}\nSHA256:\n ${index.hash} ${index.size} Packages\n`);
}

function makePip(folder: string, payload: Buffer): void {
  const info = "made-1.0.dist-info";
  const files: [name: string, content: Buffer][] = [
    ["made/__init__.py", Buffer.from("")],
    ["made/payload", payload],
    [`${info}/METADATA`, Buffer.from("Metadata-Version: 2.1\nName: made\nVersion: 1.0\n")],
    [`${info}/WHEEL`, Buffer.from("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")],
  ];
  const record = [...files.map(([name]) => `${name},,`), `${info}/RECORD,,`].join("\n");
  const wheel = "made-1.0-py3-none-any.whl";
  const bytes = zip([...files, [`${info}/RECORD`, Buffer.from(`${record}\n`)]]);
  mkdirSync(join(folder, "simple/made"), { recursive: true });
  writeFileSync(join(folder, wheel), bytes);
  writeFileSync(join(folder, "simple/made/index.html"), `<a href="/${wheel}#sha256=${sha256(bytes)}">${wheel}</a>`);
}

/** A zip archive of files as they are. */
function zip(files: [name: string, content: Buffer][]): Buffer {
  const parts: Buffer[] = [];
  const entries: Buffer[] = [];
  let offset = 0;
  for (const [name, content] of files) {
    const common = Buffer.alloc(26); // from the version to the length of the extra field
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(0x21, 8); // the first day of 1980
    common.writeUInt32LE(crc32(content), 10);
    common.writeUInt32LE(content.length, 14);
    common.writeUInt32LE(content.length, 18);
    common.writeUInt16LE(name.length, 22);
    const place = Buffer.alloc(14);
    place.writeUInt32LE(offset, 10);
    const made = Buffer.from([20, 0]);
    entries.push(Buffer.from("PK\x01\x02"), made, common, place, Buffer.from(name));
    const local = Buffer.concat([Buffer.from("PK\x03\x04"), common, Buffer.from(name), content]);
    parts.push(local);
    offset += local.length;
  }
  const directory = Buffer.concat(entries);
  const end = Buffer.alloc(22);
  end.write("PK\x05\x06");
  end.writeUInt16LE(files.length, 8);
  end.writeUInt16LE(files.length, 10);
  end.writeUInt32LE(directory.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...parts, directory, end]);
}

function makeNpm(folder: string, work: string, payload: Buffer): void {
  writeFileSync(join(work, "package.json"), JSON.stringify({ name: "made", version: "1.0.0" }));
  writeFileSync(join(work, "payload"), payload);
  const tarball = join(folder, "made-1.0.0.tgz");
  execFileSync("tar", ["-C", dirname(work), "-czf", tarball, "package"]);
  const bytes = execFileSync("cat", [tarball], { maxBuffer: 2 * payloadBytes });
  const integrity = `sha512-${createHash("sha512").update(bytes).digest("base64")}`;
  const dist = { tarball: "https://npm.archives.example/made-1.0.0.tgz", integrity };
  const versions = { "1.0.0": { name: "made", version: "1.0.0", dist } };
  const document = { name: "made", "dist-tags": { latest: "1.0.0" }, versions };
  writeFileSync(join(folder, "made"), JSON.stringify(document));
}

/** Why npm is not tried. */
export const withoutOwnNpm = "this machine's npm has no folder of its own modules";

/** The folder of this machine's npm; undefined: its modules lie elsewhere, as those of Debian's package do. */
export function ownNpm(): string | undefined {
  const places = (process.env.PATH ?? "").split(":").map((folder) => join(folder, "npm"));
  const program = places.find((path) => existsSync(path));
  if (program === undefined) return undefined;
  const folder = join(dirname(realpathSync(program)), "..");
  return existsSync(join(folder, "node_modules")) ? folder : undefined;
}

/** Node, and npm from its folder, as `usr/local` has them. */
export function addNode({ folder }: Archives, npm: string): void {
  const tree = join(folder, "made/node");
  mkdirSync(join(tree, "bin"), { recursive: true });
  cpSync(realpathSync(process.execPath), join(tree, "bin/node"));
  for (const each of ["bin", "lib", "node_modules", "package.json"])
    cpSync(join(npm, each), join(tree, "lib/npm", each), { recursive: true });
  execFileSync("tar", ["-C", tree, "-cf", join(folder, "files/node.tar"), "bin", "lib"]);
}
