/** The tarball of a release, installed in a bare Debian 12 without a tool chain and without a network. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { makeRelease } from "../../deploy/release.ts";
import { build, pack } from "../../sdk/build.ts";
import { bundle } from "../../web/build.ts";
import { BareRoot } from "./bare-root.ts";

const repository = resolve(import.meta.dirname, "../..");
const images = process.env.CAPSULE_IMAGES_FROM ?? join(repository, ".capsule/images");
const { version } = JSON.parse(readFileSync(join(repository, "package.json"), "utf8")) as { version: string };

/** The README's first program after the install. */
function firstProgram(): string {
  const block = /^```sh[^\n]*\n((?:(?!```)[^\n]*\n)*?ID=\$\(capsule create\)\n[\s\S]*?)^```$/m;
  const found = block.exec(readFileSync(join(repository, "README.md"), "utf8"))?.[1];
  assert.ok(found !== undefined, "README.md has a shell block with ID=$(capsule create)");
  return found;
}

/** The server runs in the background, since nothing starts services there; its end is that of the script. */
const script = `
for each in npm cargo rustc cc gcc node make; do ! command -v $each || { echo "$each is here"; exit 1; }; done
tar -xzf /root/release.tar.gz
./${`capsule-${version}-linux-x64`}/install
capsule --version
CAPSULE_POOL=off capsule serve >/root/log 2>&1 &
server=$!
for second in $(seq 300); do
  [ ! -s /var/lib/capsule/url ] || break
  kill -0 $server || { cat /root/log; exit 1; }
  sleep 1
done
test "$(curl -sS $(cat /var/lib/capsule/url)/sdk.tgz | tar -tz | grep -c package/package.json)" = 1
curl -sS $(cat /var/lib/capsule/url)/ | grep -q '<html'
`;

const after = `
capsule down
test ! -e /root/left
/opt/capsule-${version}/uninstall --all
ls -d /opt/capsule-* /var/lib/capsule /usr/local/bin/capsule /etc/capsule.env 2>/dev/null && exit 1
echo all is gone
`;

/** Makes a release, installs it in the root and runs the README's first program there. */
async function installIn(root: BareRoot): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "capsule-release-"));
  try {
    const data = join(folder, "data");
    mkdirSync(data);
    symlinkSync(images, join(data, "images"));
    await bundle(join(data, "web"));
    build(join(folder, "sdk"));
    pack(join(folder, "sdk"), join(data, "web/sdk.tgz"));
    const tarball = makeRelease(data, folder, true);
    assert.equal(basename(tarball), `capsule-${version}-linux-x64.tar.gz`);
    assert.ok(!existsSync(join(folder, `capsule-${version}-linux-x64`)));
    execFileSync("cp", [tarball, join(root.path, "root/release.tar.gz")]);
    const child = root.start(`${script}\n${firstProgram()}\n${after}`);
    const [stdout, stderr] = await Promise.all([text(child.stdout!), text(child.stderr!), once(child, "close")]);
    assert.equal(child.exitCode, 0, `${stdout}\n${stderr}`);
    assert.match(stdout, new RegExp(`^${version}$[\\s\\S]*^42$[\\s\\S]*^all is gone$`, "m"), stderr);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const skip = process.getuid?.() !== 0 && "needs root to mount a root file system";
test("a release installs without a tool chain or a network, and runs the README's first program", {
  skip,
}, async (t) => {
  const root = new BareRoot();
  try {
    const reason = root.mount(resolve(images, "minimal/current"));
    if (reason !== undefined) return t.skip(reason);
    await installIn(root);
  } finally {
    root.remove();
  }
});

const skip13 = skip || (process.env.CAPSULE_RELEASE !== "all" && "fetches 200 MB: CAPSULE_RELEASE=all");
test("a release installs in a bare Debian 13, with its own QEMU", { skip: skip13 }, async () => {
  const root = new BareRoot();
  try {
    await root.bootstrap("trixie");
    await installIn(root);
  } finally {
    root.remove();
  }
});
