/** The file browser: upload by drop and by button, download, view, create and delete. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { waitFor } from "../wait-for.ts";
import { deadline, service, Visitor } from "./browser.ts";

const hash = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

test("a dropped file is uploaded byte for byte", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  await visitor.sees(".bashrc");
  const bytes = randomBytes(300_000);
  const dropped = await page.evaluateHandle((base64) => {
    const content = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([content], "drop me.bin"));
    return transfer;
  }, bytes.toString("base64"));
  const told = await visitor.watchesFor(/drop me\.bin is uploaded to \/root\./);
  const zone = page.locator(".drop-zone");
  await zone.dispatchEvent("dragenter", { dataTransfer: dropped });
  await zone.dispatchEvent("drop", { dataTransfer: dropped });
  await told();
  assert.equal(await capsule.sh("sha256sum < '/root/drop me.bin' | cut -d' ' -f1"), hash(bytes));
});

test("a dropped folder is uploaded with its subfolders", deadline, async () => {
  await using capsule = await service().capsule();
  const folder = await mkdtemp(join(tmpdir(), "capsule-drop-"));
  try {
    const [top, deep] = [join(folder, "project"), join(folder, "project/src/deep")];
    await mkdir(deep, { recursive: true });
    await writeFile(join(top, "README"), "top\n");
    await writeFile(join(deep, "ünter.txt"), "deep\n");
    await using visitor = await Visitor.at(capsule, "files");
    const { page } = visitor;
    await visitor.sees(".bashrc");
    const box = (await page.locator(".drop-zone").boundingBox())!;
    const devtools = await page.context().newCDPSession(page);
    const at = { x: box.x + 50, y: box.y + 100, data: { items: [], files: [top], dragOperationsMask: 1 } };
    const told = await visitor.watchesFor(/2 files are uploaded to \/root\./);
    for (const type of ["dragEnter", "dragOver", "drop"] as const)
      await devtools.send("Input.dispatchDragEvent", { type, ...at });
    await told();
    assert.equal(await capsule.sh("cat /root/project/README /root/project/src/deep/ünter.txt"), "top\ndeep");
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("a file is uploaded by button, downloaded, and deleted after confirmation", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  await visitor.presses("New folder");
  await page.getByRole("dialog").getByLabel("Name").fill("a/b");
  await page.keyboard.press("Enter");
  await visitor.presses("folder a");
  await visitor.presses("folder b");
  await visitor.sees("This folder is empty");
  const buffer = randomBytes(70_001);
  await page.getByLabel("Files to upload").setInputFiles({ name: "x.html", mimeType: "text/html", buffer });
  const started = page.waitForEvent("download");
  await visitor.presses("Download x.html");
  const download = await started;
  assert.equal(download.suggestedFilename(), "x.html");
  assert.equal(hash(await readFile(await download.path())), hash(buffer));
  await visitor.presses("Delete x.html");
  await visitor.sees("The file is deleted. This cannot be undone.");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await visitor.sees("This folder is empty");
  assert.equal(await capsule.sh("ls /root/a/b"), "");
  await page.getByRole("navigation", { name: "Path" }).getByRole("button", { name: "root" }).click();
  await visitor.sees(".bashrc");
});

test("a path is opened, a file in it is edited and renamed", deadline, async () => {
  await using capsule = await service().capsule();
  await capsule.sh(
    "mkdir -p /srv/app; cd /srv/app; printf 'port = 80\\n' > conf; chmod 750 conf; printf 'a\\r\\n' > dos",
  );
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  const dialog = page.getByRole("dialog");
  const path = page.getByLabel("Path to open");
  await path.fill("../srv/app/");
  await path.press("Enter");
  await visitor.presses("file dos");
  await dialog.getByRole("button", { name: "Edit" }).and(page.locator("[aria-disabled=true]")).waitFor();
  await page.keyboard.press("Escape");
  await path.fill("conf");
  await path.press("Enter");
  await dialog.getByText("port = 80").waitFor();
  await dialog.getByRole("button", { name: "Edit" }).click();
  await dialog.getByLabel("Content of conf").fill("port = 8080\n");
  await page.keyboard.press("Escape");
  await dialog.getByRole("button", { name: "Save" }).click();
  await dialog.getByText("port = 8080").waitFor();
  assert.equal(await capsule.sh("stat -c '%a %s' /srv/app/conf; cat /srv/app/conf"), "750 12\nport = 8080");
  await dialog.getByRole("button", { name: "Close" }).last().click();

  await visitor.presses("Rename conf");
  await dialog.getByLabel("New name").fill("dos");
  await page.keyboard.press("Enter");
  await dialog
    .getByRole("alert")
    .filter({ hasText: /exists/ })
    .waitFor();
  await dialog.getByLabel("New name").fill("conf.ini");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "file conf.ini" }).waitFor();
  assert.equal(await capsule.sh("ls /srv/app"), "conf.ini\ndos");
});

test("an edit does not overwrite what was written meanwhile", deadline, async () => {
  await using capsule = await service().capsule();
  await capsule.sh("echo one > /root/note");
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  const dialog = page.getByRole("dialog");
  await visitor.presses("file note");
  await dialog.getByRole("button", { name: "Edit" }).click();
  await dialog.getByLabel("Content of note").fill("two");
  await capsule.sh("echo three and more > /root/note");
  await dialog.getByRole("button", { name: "Save" }).click();
  await dialog.getByRole("alert").filter({ hasText: "changed since it was opened" }).waitFor();
  assert.equal(await capsule.sh("cat /root/note"), "three and more");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await dialog.waitFor({ state: "detached" });
});

test("an upload shows its progress and can be cancelled", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  await visitor.sees(".bashrc");
  const held = Promise.withResolvers<void>();
  await page.route("**/files/stream/write", async (route) => {
    await held.promise;
    await route.abort().catch(() => {}); // the page has ended it
  });
  const file = (name: string) => ({ name, mimeType: "text/plain", buffer: Buffer.from(name) });
  await page.getByLabel("Files to upload").setInputFiles([file("first"), file("second")]);
  await page.getByRole("progressbar", { name: "Upload of first" }).waitFor();
  await visitor.sees("first, 1 of 2");
  const told = await visitor.watchesFor(/The upload of first is cancelled\./);
  await visitor.presses("Cancel upload of first");
  await told();
  held.resolve();
  await page.getByRole("progressbar").waitFor({ state: "detached" });
  await page.unrouteAll({ behavior: "wait" });
  assert.equal(await capsule.sh("ls /root"), "");
});

test("a second folder waits for the first, and either is cancelled alone", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  await visitor.sees(".bashrc");
  const held = Promise.withResolvers<void>();
  const asked: string[] = [];
  await page.route("**/files/stream/write", async (route) => {
    asked.push(route.request().url());
    await held.promise;
    await route.continue().catch(() => {}); // the page has ended that of the cancelled one
  });
  const dropped = async (name: string) => {
    const transfer = await page.evaluateHandle((name) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([name], name));
      return transfer;
    }, name);
    await page.locator(".drop-zone").dispatchEvent("drop", { dataTransfer: transfer });
  };
  await dropped("one");
  await page.getByRole("progressbar", { name: "Upload of one" }).waitFor();
  await dropped("two");
  await dropped("three");
  await page.getByText("waits for its turn").nth(1).waitFor();
  assert.equal(await page.getByRole("progressbar").count(), 1);
  await waitFor("the request of the first", async () => asked.length > 0);
  assert.equal(asked.length, 1);
  const told = await visitor.watchesFor(/The upload of two is cancelled\./);
  await visitor.presses("Cancel upload of two");
  await told();
  // The queue outlives the page of the files.
  await visitor.walksTo(`#/capsules/${capsule.id}/details`);
  await visitor.sees("Status since");
  await visitor.walksTo(`#/capsules/${capsule.id}/files`);
  await page.getByRole("progressbar", { name: "Upload of one" }).waitFor();
  await visitor.presses("Cancel upload of one");
  await page.getByRole("progressbar", { name: "Upload of three" }).waitFor();
  const sent = await visitor.watchesFor(/three is uploaded to \/root\./);
  held.resolve();
  await sent();
  await page.getByRole("button", { name: "file three" }).waitFor();
  await page.unrouteAll({ behavior: "wait" });
  assert.equal(asked.length, 2);
  assert.equal(await capsule.sh("ls /root"), "three");
});

test("a folder is uploaded with all in it, and downloaded as an archive", deadline, async () => {
  const folder = await mkdtemp(join(tmpdir(), "upload-"));
  try {
    await mkdir(join(folder, "pack/deep"), { recursive: true });
    for (const name of ["pack/one.txt", "pack/deep/two.txt"]) await writeFile(join(folder, name), name);
    await using capsule = await service().capsule();
    await using visitor = await Visitor.at(capsule, "files");
    const { page } = visitor;
    await visitor.sees(".bashrc");
    const told = await visitor.watchesFor(/2 files are uploaded to \/root\./);
    await page.getByLabel("Folder to upload").setInputFiles(join(folder, "pack"));
    await told();
    assert.equal(await capsule.sh("cat /root/pack/one.txt /root/pack/deep/two.txt"), "pack/one.txtpack/deep/two.txt");
    const started = page.waitForEvent("download");
    await visitor.presses("Download pack as tar.gz");
    const download = await started;
    assert.equal(download.suggestedFilename(), "pack.tar.gz");
    const { stdout } = spawnSync("tar", ["-xzOf", await download.path(), "pack/deep/two.txt"], { encoding: "utf8" });
    assert.equal(stdout, "pack/deep/two.txt");
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("hostile names and contents are shown as text", deadline, async () => {
  await using capsule = await service().capsule();
  const hostile = `<img src=x onerror="document.title='taken'">`;
  const script = `cd /root; printf '%s' "$1" > "$1"; ln -s ../etc into; head -c 600000 /dev/zero > zeros`;
  assert.equal((await capsule.run("bash", ["-c", script, "-", hostile])).exit_code, 0);
  await using visitor = await Visitor.at(capsule, "files");
  const { page } = visitor;
  await page.getByRole("button", { name: hostile }).first().click();
  const dialog = page.getByRole("dialog");
  assert.equal(await dialog.locator("pre").textContent(), hostile);
  await dialog.getByRole("button", { name: "Close" }).first().click();
  await visitor.presses("file zeros");
  await visitor.sees("This file is not text");
  await page.keyboard.press("Escape");
  await visitor.presses("link into");
  await visitor.sees("hostname");
  assert.match(await page.title(), /^cl-/);
});

test("errors have the service's message, and stay until dismissed", deadline, async () => {
  await using capsule = await service().capsule();
  await using visitor = await Visitor.at(capsule, "files");
  await visitor.sees(".bashrc");
  await capsule.sh("rm /root/.profile");
  await visitor.presses("Download .profile");
  const toast = visitor.page.getByRole("alert").filter({ hasText: "/root/.profile" });
  await toast.waitFor();
  await toast.getByRole("button", { name: "Dismiss" }).click();
  await toast.waitFor({ state: "detached" });
});
