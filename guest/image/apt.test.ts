import assert from "node:assert/strict";
import { test } from "node:test";
import { parseKernel, parseTargets, sourceLine } from "./apt.ts";
import { moduleName } from "./kernel.ts";
import { installedPackages } from "./root.ts";

test("sources are the machine's Debian sources of the release, without backports and other origins", () => {
  const targets = [
    "http://mirror.test/debian/|bookworm-backports|main|Debian Backports",
    "http://mirror.test/security/|bookworm-security|main|Debian",
    "http://mirror.test/debian/|bookworm|contrib|Debian",
    "http://mirror.test/debian/|bookworm|main|Debian",
    "http://mirror.test/debian/|bookworm|main|Debian",
    "http://mirror.test/debian/|bookworm-updates|main|Debian",
    "http://mirror.test/debian/|trixie|main|Debian",
    "https://other.test/apt/|bookworm|main|Other",
    "",
  ];
  assert.deepEqual(parseTargets(targets.join("\n"), "bookworm").map(sourceLine), [
    "deb http://mirror.test/debian/ bookworm contrib main",
    "deb http://mirror.test/debian/ bookworm-updates main",
    "deb http://mirror.test/security/ bookworm-security main",
  ]);
  const more = parseTargets(targets.join("\n"), "bookworm", ["bookworm-backports"]).map(sourceLine);
  assert.deepEqual(more.at(-1), "deb http://mirror.test/debian/ bookworm-backports main");
  assert.equal(more.length, 4);
});

test("the kernel's package and version are those that the metapackage depends on", () => {
  const show = "Package: linux-image-cloud-amd64\nDepends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\nSize: 1\n";
  assert.deepEqual(parseKernel(show, "linux-image-cloud-amd64"), {
    name: "linux-image-6.1.0-56-cloud-amd64",
    version: "6.1.192-2",
  });
  assert.throws(() => parseKernel("Package: x\n", "x"), /x depends on no kernel image/);
});

test("module names are those of the kernel, whatever the file is called", () => {
  assert.equal(moduleName("kernel/drivers/block/virtio_blk.ko.xz"), "virtio_blk");
  assert.equal(moduleName("kernel/drivers/char/hw_random/virtio-rng.ko"), "virtio_rng");
});

test("only installed packages count, sorted by name", () => {
  const status = [
    "Package: git\nStatus: install ok installed\nVersion: 1:2.39.5-0\n",
    "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n",
    "Package: bash\nStatus: install ok installed\nVersion: 5.2\n",
  ];
  assert.deepEqual(installedPackages(status.join("\n")), { bash: "5.2", git: "1:2.39.5-0" });
  assert.deepEqual(Object.keys(installedPackages(status.join("\n"))), ["bash", "git"]);
});
