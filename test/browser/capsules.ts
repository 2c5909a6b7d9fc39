/** The life cycle of capsules in the dashboard. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deadline, service, Visitor } from "./browser.ts";

test("a capsule is created and destroyed by keyboard alone", deadline, async () => {
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  await visitor.sees("No capsules yet");
  const opener = page.getByRole("button", { name: "New capsule" });
  await opener.focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByLabel("Template").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.ok(await opener.evaluate((element) => element === document.activeElement));
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByLabel("Pause when idle").selectOption("After 15 minutes");
  await page.getByRole("dialog").getByLabel("Destroy when it has run").selectOption("After 4 hours");
  await page.getByRole("dialog").getByLabel("Resume it when a request needs it").check();
  await page.getByRole("dialog").getByLabel("Virtual CPUs").focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /cl-/ }).waitFor();
  const id = /cl-[0-9a-z]{25}/.exec(page.url())![0];
  await visitor.sees("running");
  // A socket refused because its capsule has just gone is logged by the browser as an error.
  await visitor.sees("Connected.");
  const { json: made } = await service().expect(200, "GET", `/v1/capsules/${id}`);
  assert.deepEqual([made.timeout_sec, made.lifetime_sec, made.auto_resume], [900, 14_400, true]);
  await page.getByRole("tab", { name: "Details" }).click();
  await visitor.sees("destroyed after running for 4 hours");
  await page.getByRole("button", { name: "More actions" }).focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByText("This cannot be undone").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Destroy" }).focus();
  await page.keyboard.press("Enter");
  await visitor.sees("No capsules yet");
  await service().expect(404, "GET", `/v1/capsules/${id}`);
});

test(
  "name, labels, variables and disk are set at the create; name and labels are changed later",
  deadline,
  async () => {
    await using visitor = await Visitor.signedIn();
    const { page } = visitor;
    const dialog = page.getByRole("dialog");
    await visitor.presses("New capsule");
    await dialog.getByLabel("Name").fill("of-browser");
    await dialog.getByLabel("Labels").fill("env=test\nowner=me");
    await dialog.getByLabel("Variables").fill("GREETING");
    await dialog.getByRole("button", { name: "Create" }).click();
    await visitor.sees('Variables: "GREETING" is not KEY=VALUE');
    await dialog.getByLabel("Variables").fill("GREETING=hello");
    await dialog.getByLabel("Disk, MiB").fill("4608");
    await dialog.getByRole("button", { name: "Create" }).click();
    await page.getByRole("heading", { name: "of-browser" }).waitFor();
    await visitor.sees("Connected.");
    const { json: made } = await service().expect(200, "GET", "/v1/capsules/of-browser");
    await using capsule = await service().known(made.id);
    assert.deepEqual([made.labels, made.disk_mb], [{ env: "test", owner: "me" }, 4_608]);
    assert.equal(await capsule.sh("echo $GREETING"), "hello");
    await visitor.walksTo(`#/capsules/${made.id}/details`);
    await visitor.presses("Edit name and labels");
    await dialog.getByLabel("Name").fill("");
    await dialog.getByLabel("Labels").fill("env=live\nteam=blue");
    await dialog.getByRole("button", { name: "Save" }).click();
    await dialog.waitFor({ state: "detached" });
    await visitor.sees("env=live");
    const { json: changed } = await service().expect(200, "GET", capsule.path);
    assert.deepEqual([changed.name, changed.labels], [null, { env: "live", team: "blue" }]);
  },
);

test(
  "pause asks nothing, in the list and on the page, and what the status does not allow is left out",
  deadline,
  async () => {
    await using capsule = await service().capsule();
    const { id } = capsule;
    await using visitor = await Visitor.signedIn("#/capsules");
    const { page } = visitor;
    const actions = page.locator(".page-head .actions");
    const shown = async () => (await actions.getByRole("button").allTextContents()).map((text) => text.trim());
    const row = page.getByRole("row").filter({ hasText: id });
    await visitor.presses(`Pause ${id}`);
    await row.getByText("paused").waitFor();
    await visitor.presses(`Resume ${id}`);
    await row.getByText("running").waitFor();
    await visitor.walksTo(`#/capsules/${id}/files`);
    await visitor.sees(".bashrc");
    assert.deepEqual(await shown(), ["Pause", "Snapshot", ""]);
    await visitor.presses("Pause");
    await visitor.sees("This capsule is paused");
    await actions.getByRole("button", { name: "Resume" }).waitFor();
    await visitor.presses("More actions");
    const items = page.locator(".menu-items");
    await items.waitFor();
    assert.deepEqual(
      (await actions.getByRole("button").all()).length,
      3,
      "Resume, the menu and Destroy: nothing that is refused",
    );
    await page.keyboard.press("Escape");
    await items.waitFor({ state: "detached" });
    // Faster than the menu is painted.
    await page.evaluate(async () => {
      const opener = document.querySelector<HTMLElement>('[aria-label="More actions"]')!;
      opener.click();
      while (document.querySelector(".menu-items") === null) await Promise.resolve();
      opener.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    });
    await items.waitFor({ state: "detached" });
    await visitor.presses("Resume this capsule");
    await visitor.sees(".bashrc");
  },
);

for (const width of [390, 360]) {
  test(
    `the page of a capsule has its actions in one line, and its tabs above the middle: ${width} px`,
    deadline,
    async () => {
      await using capsule = await service().capsule();
      await using visitor = await Visitor.at(capsule, "files", { viewport: { width, height: 844 } });
      const { page } = visitor;
      await visitor.sees(".bashrc");
      const boxes = await page.locator(".page-head .actions button").evaluateAll((all) =>
        all.map((each) => {
          const { top, right } = each.getBoundingClientRect();
          return { top, isInside: right <= innerWidth };
        }),
      );
      assert.equal(boxes.length, 3);
      assert.deepEqual([...new Set(boxes.map(({ top }) => top))].length, 1, JSON.stringify(boxes));
      assert.ok(boxes.every(({ isInside }) => isInside));
      const panel = await page.getByRole("tabpanel").boundingBox();
      assert.ok(panel!.y < 300, `the content begins at ${panel!.y} px`);
      await visitor.presses("More actions");
      const menu = await page.locator(".menu-items").boundingBox();
      assert.ok(menu!.x >= 0 && menu!.x + menu!.width <= width, JSON.stringify(menu));
      await page.locator("h1").click();
      await page.locator(".menu-items").waitFor({ state: "detached" });
    },
  );
}

test(
  "a number above the list shows the capsules of its status, and Details has lines that use the capsule",
  deadline,
  async () => {
    await using running = await service().capsule();
    await using paused = await service().capsule();
    await paused.pause();
    await using visitor = await Visitor.at(running, "details");
    const { page } = visitor;
    await visitor.sees(`capsule exec ${running.id} -- uname -a`);
    await visitor.walksTo("#/capsules");
    const row = (id: string) => page.getByRole("row").filter({ hasText: id });
    await row(running.id).waitFor();
    const number = page.getByRole("button", { name: /^\d+ paused$/ });
    await number.click();
    await row(running.id).waitFor({ state: "detached" });
    await row(paused.id).waitFor();
    assert.equal(await number.getAttribute("aria-pressed"), "true");
    await number.click();
    await row(running.id).waitFor();
  },
);

test("a capsule is stopped, and starts from its disk", deadline, async () => {
  await using capsule = await service().capsule();
  await capsule.sh("echo kept > /root/note");
  await using visitor = await Visitor.at(capsule, "details");
  const { page } = visitor;
  await visitor.presses("More actions");
  await visitor.presses("Stop");
  await visitor.sees("Its disk is kept. Start boots from it.");
  await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
  await page.getByText("stopped", { exact: true }).first().waitFor();
  await visitor.walksTo(`#/capsules/${capsule.id}/files`);
  await visitor.sees("This capsule is stopped");
  await visitor.presses("Start this capsule");
  await visitor.sees("note");
  assert.equal(await capsule.sh("cat /root/note"), "kept");
});

test("changes by other clients appear without a reload", deadline, async () => {
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  await visitor.sees("No capsules yet");
  const capsule = await service().capsule();
  const row = page.getByRole("row").filter({ hasText: capsule.id });
  await row.getByText("running").waitFor();
  await service().expect(200, "POST", `${capsule.path}/pause`);
  await row.getByText("paused").waitFor();
  await service().expect(204, "DELETE", capsule.path);
  await visitor.sees("No capsules yet");
});

test("a snapshot becomes a template that capsules start from, until it is deleted", deadline, async () => {
  await using capsule = await service().capsule();
  await capsule.sh("echo kept > /root/note");
  await using visitor = await Visitor.at(capsule, "details");
  const { page } = visitor;
  await visitor.presses("Snapshot");
  await visitor.sees("The capsule itself is destroyed.");
  await page.getByLabel("Template name").fill("with-note");
  const told = await visitor.watchesFor(/Template with-note is made/);
  await page.keyboard.press("Enter");
  await told();
  await visitor.walksTo("#/templates");
  await page.getByRole("button", { name: "New capsule from with-note" }).click();
  await visitor.sees("The size is that of the snapshot");
  await page.getByRole("dialog").getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: /cl-/ }).waitFor();
  await using started = service().known(/cl-[0-9a-z]{25}/.exec(page.url())![0]);
  await visitor.sees("Connected.");
  assert.equal(await started.sh("cat /root/note"), "kept");
  await visitor.walksTo("#/templates");
  const row = page.getByRole("row").filter({ hasText: "with-note" });
  await row.getByText("captured from a capsule").waitFor();
  await row.getByText("1 capsule", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Delete with-note" }).click();
  await visitor.sees("Paused capsules that started from it cannot be resumed any more");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("row").filter({ hasText: "with-note" }).waitFor({ state: "detached" });
});

test("processes are listed and ended; the audit log has the entry", deadline, async () => {
  await using capsule = await service().capsule();
  const { json } = await capsule.exec({ cmd: "sleep", args: ["1000"], background: true });
  await using visitor = await Visitor.at(capsule, "processes");
  const { page } = visitor;
  await page.getByRole("button", { name: `End process ${json.pid}` }).click();
  await page.getByLabel(/End it at once/).check();
  await page.getByRole("dialog").getByRole("button", { name: "End it" }).click();
  await page.getByRole("row").filter({ hasText: json.tag }).waitFor({ state: "detached" });
  assert.equal((await service().call("DELETE", `${capsule.path}/processes/${json.pid}`)).status, 404);
  await visitor.walksTo(`#/audit?capsule=${capsule.id}`);
  await page.getByRole("row").filter({ hasText: "process.kill" }).getByText("done").waitFor();
});

test("the list of capsules is sorted in the order that is chosen", deadline, async () => {
  await using first = await service().capsule();
  await using second = await service().capsule();
  await service().expect(200, "PATCH", first.path, { json: { name: "order-a" } });
  await service().expect(200, "PATCH", second.path, { json: { name: "order-b" } });
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const names = page.getByRole("rowheader").getByRole("link", { name: /^order-/ });
  await page.getByRole("table", { name: "Capsules: newest first" }).waitFor();
  await names.nth(1).waitFor();
  assert.deepEqual(await names.allTextContents(), ["order-b", "order-a"]);
  await page.getByLabel("Order of capsules").selectOption("By name");
  await page.getByRole("table", { name: "Capsules: by name" }).waitFor();
  assert.deepEqual(await names.allTextContents(), ["order-a", "order-b"]);
});

test("a phone shows the whole name of a capsule, and its status below it", deadline, async () => {
  const name = "checkout-preview-of-branch-1842-and-some-more";
  await using capsule = await service().capsule({ name });
  await using visitor = await Visitor.signedIn("#/capsules", { viewport: { width: 390, height: 844 } });
  const row = visitor.page.getByRole("row").filter({ hasText: capsule.id });
  const link = row.getByRole("link", { name });
  await link.waitFor();
  const { hidden, cell } = await link.evaluate((element) => {
    const cell = element.closest("th")!.getBoundingClientRect();
    const text = document.createRange();
    text.selectNodeContents(element);
    const hidden = [...text.getClientRects()].filter(({ left, right }) => left < cell.left || right > cell.right);
    return { hidden: hidden.length + Number(getComputedStyle(element).overflowX !== "visible"), cell };
  });
  assert.equal(hidden, 0);
  const status = await row.getByText("running", { exact: true }).boundingBox();
  assert.ok(status!.y >= cell.bottom - 4 && status!.x < cell.right, JSON.stringify({ status, cell }));
});

test("looking at a paused capsule that resumes by itself does not resume it, whatever the tab", deadline, async () => {
  await using capsule = await service().capsule({ auto_resume: true });
  await capsule.pause();
  await using visitor = await Visitor.signedIn();
  const { page } = visitor;
  const asked: string[] = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  for (const tab of ["terminal", "files", "processes"]) {
    await visitor.walksTo(`#/capsules/${capsule.id}/${tab}`);
    await visitor.sees("Resume this capsule");
  }
  await visitor.walksTo("#/usage");
  await visitor.sees("Virtual CPUs of one capsule");
  assert.deepEqual(
    asked.filter((path) => path.startsWith(`${capsule.path}/`)),
    [],
  );
  const { json } = await service().expect(200, "GET", capsule.path);
  assert.equal(json.status, "paused");
});

test("a row has its labels, what it uses, when it was last active, and the reason of an error", deadline, async () => {
  await using capsule = await service().capsule({ labels: { env: "test", owner: "me" } });
  await capsule.sh("true");
  await using visitor = await Visitor.come();
  const { page } = visitor;
  const { json: sample } = await service().expect(200, "GET", capsule.path);
  const failed = { ...sample, id: `cl-${"0".repeat(25)}`, status: "error", error_reason: "its kernel panicked" };
  await page.route(/\/v1\/capsules(\?.*)?$/, (route) => {
    const now = new Date().toISOString(); // the capsule may have been made minutes ago
    return route.fulfill({ json: [{ ...sample, created_at: now, last_active_at: now }, failed] });
  });
  await visitor.signIn(service().key);
  const row = (id: string) => page.getByRole("row").filter({ hasText: id });
  await row(capsule.id).getByText("from minimal, env=test, owner=me").waitFor();
  await row(capsule.id)
    .getByText(/^\d+ MiB, disk \d+/)
    .waitFor();
  await row(capsule.id)
    .getByText(/^just now$/)
    .nth(1)
    .waitFor();
  await row(failed.id).getByText("its kernel panicked").waitFor();
});
