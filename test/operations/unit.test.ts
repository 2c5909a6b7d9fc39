/** The systemd unit that `./dev install` writes. */
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  cpSync,
  existsSync,
  lchownSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { after, describe, test } from "node:test";
import { loadConfig } from "../../src/config.ts";
import { Server } from "../server.ts";

const repository = resolve(import.meta.dirname, "../..");

function unit(env: Record<string, string> = {}): string {
  return execFileSync(join(repository, "dev"), ["unit"], { env: { ...process.env, ...env }, encoding: "utf8" });
}

test("stopping the service ends the server alone, and the next one finds its data", () => {
  const text = unit({ CAPSULE_DATA: "/srv/capsules" });
  assert.match(text, /^KillMode=process$/m);
  assert.match(text, /^Delegate=yes$/m);
  assert.match(text, /^OOMScoreAdjust=-900$/m);
  assert.match(text, /^PrivateTmp=yes$/m);
  assert.match(text, /^Environment=CAPSULE_DATA=\/srv\/capsules$/m);
  assert.match(text, /^ReadWritePaths=\/srv\/capsules$/m);
  assert.match(unit({ CAPSULE_DATA: "" }), /^Environment=CAPSULE_DATA=\/var\/lib\/capsule$/m);
  assert.doesNotMatch(text, /@[A-Z]+@/);
});

test("its stop timeout is longer than the server's", () => {
  const seconds = Number(/^TimeoutStopSec=(\d+)$/m.exec(unit())?.[1]);
  const { drainMs } = loadConfig({});
  assert.ok(seconds * 1_000 > 4 * drainMs, `${seconds} s for a drain of ${drainMs} ms, twice, and the rest`);
});

const hasSystemd = spawnSync("systemd-analyze", ["--version"]).status === 0;
test("systemd finds nothing wrong with it", { skip: !hasSystemd && "systemd-analyze is not installed" }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-unit-"));
  try {
    const path = join(folder, "capsule.service");
    writeFileSync(path, unit());
    const { status, stdout, stderr } = spawnSync("systemd-analyze", ["verify", path], { encoding: "utf8" });
    assert.equal(status, 0, stderr);
    assert.equal(stdout + stderr, "");
  } finally {
    rmSync(folder, { recursive: true });
  }
});

/** The unit's restrictions without systemd: fewer capabilities, and no writable folders but its own. */
const confined = `
set -e
mount --make-rprivate /
mount --bind "$CAPSULE_DATA" "$CAPSULE_DATA"
mount -o remount,bind,ro /
mkdir -p "$TMPDIR"
touch ./dev 2>/dev/null && exit 9
exec setpriv --no-new-privs --bounding-set="$BOUNDS" --inh-caps=-all -- "$0" src/main.ts doctor
`;

/** Runs `./dev install` with a separate /etc and a systemctl that only records its arguments. */
const installed = `
set -e
mount --make-rprivate /
cp -a /etc "$FOLDER/etc"
mkdir -p "$FOLDER/etc/systemd/system" "$FOLDER/bin"
mount --bind "$FOLDER/etc" /etc
printf '#!/bin/sh\necho "$*" >> "%s/asked"\n' "$FOLDER" > "$FOLDER/bin/systemctl"
chmod +x "$FOLDER/bin/systemctl"
PATH=$FOLDER/bin:$PATH exec ./dev install
`;

const skip = process.getuid?.() !== 0 && "needs root to drop capabilities";
test("a capsule runs with only the capabilities and folders of the unit", { skip, timeout: 600_000 }, async () => {
  await using server = await Server.start({ env: { CAPSULE_POOL: "off" } });
  await server.kill("SIGTERM");
  const capabilities = [...unit().matchAll(/CAP_([A-Z_]+)/g)].map(([, name = ""]) => `+${name.toLowerCase()}`);
  const { status, stdout, stderr } = spawnSync("unshare", ["--mount", "bash", "-c", confined, process.execPath], {
    cwd: repository,
    encoding: "utf8",
    env: {
      ...process.env,
      CAPSULE_DATA: server.dataDir,
      CAPSULE_POOL: "off",
      TMPDIR: join(server.dataDir, "tmp"),
      BOUNDS: ["-all", ...capabilities].join(),
    },
  });
  assert.equal(status, 0, stdout + stderr);
  assert.match(stdout, /a capsule was created, ran a command and was destroyed/i);
});

describe("install is refused where others than root could change what the service runs", { skip }, () => {
  const nobody = 65_534;
  for (const [what, change, named] of [
    ["a file of another user", (tree: string) => chownSync(join(tree, "src/main.ts"), nobody, nobody), "src/main.ts"],
    ["a file that all can write", (tree: string) => chmodSync(join(tree, "src/main.ts"), 0o666), "src/main.ts"],
    ["a folder that a group can write", (tree: string) => share(join(tree, "src"), nobody), "src"],
    ["a tree of another user", (tree: string) => chownSync(tree, nobody, nobody), ""],
    ["a folder of another user above it", (tree: string) => chownSync(join(tree, ".."), nobody, nobody), ".."],
    ["packages that are linked from elsewhere", linkPackages, "../packages/all.js"],
  ] as const) {
    test(what, () => {
      const { tree, install } = copyOfDev();
      change(tree);
      const { status, stderr } = install();
      assert.equal(status, 1, stderr);
      assert.ok(stderr.includes(`others than root can change ${join(tree, named)} (owner `), stderr);
      assert.match(stderr, /sudo git clone .* sudo \/opt\/capsule\/dev install\n$/);
    });
  }

  test("a data folder in the folder of another user", () => {
    const { data, install } = copyOfDev();
    mkdirSync(dirname(data));
    chownSync(dirname(data), nobody, nobody);
    const { status, stderr } = install();
    assert.equal(status, 1, stderr);
    assert.ok(stderr.includes(`others than root can change ${dirname(data)} (owner `), stderr);
  });

  for (const [what, change, named] of [
    ["a data folder of another user", (data: string) => chownSync(data, nobody, nobody), ""],
    ["a data folder that all can write", (data: string) => chmodSync(data, 0o777), ""],
    ["a sticky data folder that all can write", (data: string) => chmodSync(data, 0o1777), ""],
    ["a data folder that a group can write", (data: string) => share(data, nobody), ""],
    ["a database of another user", (data: string) => chownSync(join(data, "capsule.db"), nobody, nobody), "capsule.db"],
    ["a folder in it that all can write", (data: string) => chmodSync(join(data, "images"), 0o777), "images"],
    ["a link of another user", (data: string) => lchownSync(join(data, "qemu"), nobody, nobody), "qemu"],
  ] as const) {
    test(what, () => {
      const { data, install } = copyOfDev();
      fill(data);
      change(data);
      const { status, stderr } = install();
      assert.equal(status, 1, stderr);
      assert.match(stderr, /data folder as root, and others than root can change/);
      assert.ok(stderr.includes(`others than root can change ${join(data, named)} (owner `), stderr);
    });
  }

  test("a data folder of root's is not, whatever root's group may do and its capsules hold", () => {
    const { data, install } = copyOfDev();
    fill(data);
    share(data, 0);
    chownSync(join(data, "images/of-a-jail"), nobody, nobody);
    assert.match(install().stderr, /^the next step$/m);
  });

  function fill(data: string): void {
    mkdirSync(join(data, "images/of-a-jail"), { recursive: true });
    writeFileSync(join(data, "capsule.db"), "");
    symlinkSync("images", join(data, "qemu"));
  }

  test("a tree of root's is not, whatever its own .capsule holds and root's group may do", () => {
    const { tree, install } = copyOfDev();
    mkdirSync(join(tree, ".capsule"));
    chownSync(join(tree, ".capsule"), nobody, nobody);
    share(join(tree, "src"), 0);
    const { stderr } = install();
    assert.match(stderr, /^the next step$/m);
  });

  function share(path: string, group: number): void {
    chownSync(path, 0, group);
    chmodSync(path, 0o775);
  }

  function linkPackages(tree: string): void {
    const packages = join(tree, "../packages");
    mkdirSync(packages);
    writeFileSync(join(packages, "all.js"), "");
    chmodSync(join(packages, "all.js"), 0o666);
    symlinkSync(packages, join(tree, "node_modules"));
  }
});

/** A tree of root's with the script and little else, whose install ends after the check. */
function copyOfDev() {
  const folder = mkdtempSync(join(tmpdir(), "capsule-tree-"));
  after(() => rmSync(folder, { recursive: true }));
  const [tree, bin, data] = [join(folder, "tree"), join(folder, "bin"), join(folder, "var/data")];
  mkdirSync(join(tree, "src"), { recursive: true });
  mkdirSync(bin);
  writeFileSync(join(tree, "src/main.ts"), "");
  copyFileSync(join(repository, "dev"), join(tree, "dev"));
  cpSync(join(repository, "deploy"), join(tree, "deploy"), { recursive: true });
  for (const [name, script] of [
    ["systemctl", "exit 0"],
    ["flock", "echo the next step >&2; exit 1"],
  ] as const) {
    writeFileSync(join(bin, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  }
  const env = { ...process.env, PATH: `${bin}:${process.env.PATH}`, CAPSULE_DATA: data };
  const install = () => spawnSync(join(tree, "dev"), ["install"], { encoding: "utf8", env });
  return { tree, data, install };
}

/** The functions of deploy/service.sh over a systemctl that records its arguments. */
function service(settings: string, script: string): { asked: string[]; folder: string } {
  const folder = mkdtempSync(join(tmpdir(), "capsule-socket-"));
  after(() => rmSync(folder, { recursive: true }));
  mkdirSync(join(folder, "units"));
  writeFileSync(join(folder, "env"), settings);
  const preamble = `. deploy/packages.sh; . deploy/service.sh; settings=${folder}/env; units=${folder}/units; data=/srv; work=${folder}
    systemctl() { echo "$*" >>${folder}/asked; }`;
  execFileSync("bash", ["-euc", `${preamble}\n${script}`], { cwd: repository, stdio: "pipe" });
  const asked = existsSync(join(folder, "asked")) ? readFileSync(join(folder, "asked"), "utf8").trim().split("\n") : [];
  return { asked, folder };
}

test("the socket unit listens where the settings say, and there is none for any free port or a name", () => {
  const lines = (settings: string) => {
    const { folder } = service(settings, `addresses >${"$"}{units}/said`);
    return readFileSync(join(folder, "units/said"), "utf8").trim().split("\n");
  };
  assert.deepEqual(lines(""), ["ListenStream=127.0.0.1:8080"]);
  assert.deepEqual(lines("CAPSULE_HOST=0.0.0.0\nCAPSULE_PORT=1\nCAPSULE_PORT='443'\n"), ["ListenStream=0.0.0.0:443"]);
  assert.deepEqual(lines('CAPSULE_HOST="::"\n'), ["ListenStream=[::]:8080"]);
  assert.equal(lines("CAPSULE_HOST=localhost\n")[0], "ListenStream=127.0.0.1:8080");
  for (const none of ["CAPSULE_PORT=0\n", "CAPSULE_HOST=example.org\n"]) assert.deepEqual(lines(none), [""]);
});

test("a later install leaves an unchanged socket open, and removes it where the port is 0", () => {
  const kept = service("", "start_service; : >$units/../asked; start_service");
  assert.deepEqual(kept.asked, [
    ...["daemon-reload", "enable --quiet capsule", "is-active --quiet capsule.socket", "restart capsule"],
  ]);
  const removed = service("", `start_service; : >$units/../asked; echo CAPSULE_PORT=0 >$settings; start_service`);
  assert.deepEqual(removed.asked, [
    ...["daemon-reload", "enable --quiet capsule", "disable --quiet --now capsule.socket", "daemon-reload"],
    "restart capsule",
  ]);
  assert.ok(!existsSync(join(removed.folder, "units/capsule.socket")));
});

const hasNoUnits = !hasSystemd && "systemd-analyze is not installed";
test("systemd finds nothing wrong with the socket unit", { skip: hasNoUnits }, () => {
  const { folder } = service("CAPSULE_HOST=localhost\n", "start_service");
  const paths = ["capsule.socket", "capsule.service"].map((name) => join(folder, "units", name));
  const { status, stdout, stderr } = spawnSync("systemd-analyze", ["verify", ...paths], { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  assert.equal(stdout + stderr, "");
});

test("install builds, writes unit and settings, and restarts the service", { skip, timeout: 600_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), "capsule-install-"));
  try {
    const data = join(folder, "data");
    mkdirSync(data);
    symlinkSync(process.env.CAPSULE_IMAGES_FROM ?? join(repository, ".capsule/images"), join(data, "images"));
    const env = { ...process.env, CAPSULE_DATA: data, FOLDER: folder };
    const install = () =>
      spawnSync("unshare", ["--mount", "bash", "-c", installed], { cwd: repository, encoding: "utf8", env });
    const { status, stderr } = install();
    assert.equal(status, 0, stderr);
    assert.equal(
      readFileSync(join(folder, "etc/systemd/system/capsule.service"), "utf8"),
      unit({ CAPSULE_DATA: data }),
    );
    assert.equal(statSync(join(folder, "etc/capsule.env")).mode & 0o777, 0o600);
    const asked = () => readFileSync(join(folder, "asked"), "utf8").trim().split("\n");
    const opening = ["stop capsule", "daemon-reload", "enable --quiet capsule.socket", "start capsule.socket"];
    assert.deepEqual(asked(), ["daemon-reload", "enable --quiet capsule", ...opening, "restart capsule"]);
    const socket = join(folder, "etc/systemd/system/capsule.socket");
    assert.match(readFileSync(socket, "utf8"), /^\[Socket\]\nListenStream=127\.0\.0\.1:8080\nBacklog=4096$/m);
    assert.ok(existsSync(join(data, "web/index.html")), "the dashboard is built");
  } finally {
    rmSync(folder, { recursive: true });
  }
});
