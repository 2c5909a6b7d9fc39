/** Runs in namespaces of its own (installs.test.ts). */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { type Archives, addNode, makeArchives, ownNpm, withoutOwnNpm } from "./archives.ts";
import { inContainer } from "./guest-programs.ts";
import { inFolder, installed, installs, useArchives } from "./installs.ts";
import { world } from "./internet.ts";
import { python, useResolver, WholeWorld } from "./whole-world.ts";

const timeout = 600_000;
const npm = ownNpm();
const folder = mkdtempSync(join(tmpdir(), "installs-"));
const listed = ["files", "git", "apt", "pip"].map((label) => `${label}.archives.example`);
const withoutNpm = npm === undefined && withoutOwnNpm;
let archives: Archives;
let whole: WholeWorld;

/** Writing it to the disk would take most of the test's time. */
const addNodeInMemory = `
  mount -t tmpfs node /usr/local
  curl -fsS https://files.archives.example/node.tar | tar -xC /usr/local`;

/** Optimising code that runs once takes longer than it saves. */
const npmInstall = `
  export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
  echo '{}' > package.json
  node --no-opt /usr/local/lib/npm/bin/npm-cli.js install --silent --registry https://npm.archives.example made
  sha256sum node_modules/made/payload`;

/** One message after the other, each once the one before has come back. */
const webSocketEcho = `
  const { randomBytes } = require("node:crypto");
  const sizes = [0, 1, 125, 126, 65536, 1000000];
  const socket = new WebSocket("ws://sockets.archives.example/");
  socket.binaryType = "arraybuffer";
  let sent;
  const send = () => {
    const size = sizes.shift();
    if (size === undefined) { console.log("exact"); socket.close(); return; }
    sent = randomBytes(size);
    socket.send(sent);
  };
  socket.onopen = send;
  socket.onmessage = ({ data }) => {
    if (!sent.equals(Buffer.from(data))) throw new Error("another message");
    send();
  };
  socket.onerror = ({ message }) => { throw new Error(message); };`;

const readEvents = `
  curl -fsSN https://events.archives.example/clock | while read -r line; do
    [[ -n $line ]] || continue
    echo "$line"
    [[ $line = *3 ]] || curl -fsS https://events.archives.example/clock/seen
  done`;

before(
  async () => {
    useResolver(folder);
    archives = makeArchives(join(folder, "archives"));
    if (npm !== undefined) addNode(archives, npm);
    whole = await WholeWorld.open(archives.folder);
  },
  { timeout },
);
after(async () => {
  await whole?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

/** Addresses and ports that connections have come to since the last call. */
const arrived = async () => [...new Set((await whole.arrived()).connections)].sort();

describe("under a list", () => {
  let capsule: TestCapsule;
  before(
    async () => {
      capsule = await whole.client.capsule({ network: { egress: "allowlist", allow: listed } });
      await useArchives(capsule, whole.internet.certificate);
    },
    { timeout },
  );
  after(async () => capsule?.destroy());

  for (const [tool, script] of Object.entries(installs))
    test(`${tool} installs`, { timeout }, async () => {
      await arrived();
      assert.equal(await installed(capsule, script), archives.sha256);
      assert.deepEqual(await arrived(), [`${world.archives}:${tool === "apt" ? 80 : 443}`]);
    });

  test("git pushes", { timeout }, async () => {
    const pushed = await installed(
      capsule,
      `git clone -q https://git.archives.example/made.git made; cd made; git checkout -qb pushed
       head -c 2000000 /dev/urandom > random; git add random
       git -c user.name=me -c user.email=me@a.example commit -qm random; git push -q origin pushed; sha256sum random`,
    );
    const show = ["-C", join(archives.folder, "git/made.git"), "show", "pushed:random"];
    const there = execFileSync("git", show, { maxBuffer: 1 << 24 });
    assert.equal(createHash("sha256").update(there).digest("hex"), pushed);
  });

  test("what is not listed is not installed, and shown as denied", { timeout }, async () => {
    await arrived();
    const { exit_code } = await capsule.run("curl", ["-sS", "https://npm.archives.example/made"]);
    assert.equal(exit_code, 6, "it has no address");
    assert.deepEqual(await arrived(), []);
    const isIt = (each: Record<string, unknown>) =>
      each.host === "npm.archives.example" && each.verdict === "denied" && each.reason === "not listed";
    await whole.shows(capsule, isIt);
  });
});

describe("under public", () => {
  let capsule: TestCapsule;
  before(
    async () => {
      capsule = await whole.client.capsule();
      await useArchives(capsule, whole.internet.certificate);
    },
    { timeout },
  );
  after(async () => capsule?.destroy());

  test("npm installs, with a Node that was downloaded", { timeout, skip: withoutNpm }, async () => {
    await inFolder(capsule, addNodeInMemory);
    assert.equal(await installed(capsule, npmInstall), archives.sha256);
  });

  test("Node keeps messages of a WebSocket, of any size", { timeout, skip: withoutNpm }, async () => {
    assert.equal(await inFolder(capsule, `node -e '${webSocketEcho}'`), "exact");
  });

  test("each event of a stream comes when it is sent", { timeout }, async () => {
    assert.equal(await inFolder(capsule, readEvents), "data: 1\ndata: 2\ndata: 3");
  });

  test("a container with addresses of its own installs, and a list holds for it", { timeout }, async () => {
    const inside = (script: string) => python(capsule, inContainer, "bash", "-c", script);
    const download = "curl -fsS https://files.archives.example/payload | sha256sum";
    assert.equal((await inside(download)).slice(0, 64), archives.sha256);
    await whole.setNetwork(capsule, { egress: "allowlist", allow: ["git.archives.example"] });
    const reachedByGit = await inside(`${download}; git ls-remote https://git.archives.example/made.git HEAD`);
    assert.match(reachedByGit, /^e3b0c44298fc1c14\S+ {2}-\n[0-9a-f]{40}\tHEAD$/, "no byte of the one, and the other");
  });
});
